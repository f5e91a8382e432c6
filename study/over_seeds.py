"""Agents over seeds: means with 95% intervals, each seed, and differences to the first agent, seed by seed.

    python study/over_seeds.py base='runs/a/*/base.test.metrics.json' sweet='runs/a/*/policy.test.metrics.json'

A seed is a whole training run, and its folder is its name. The files are what evaluate.py writes beside scored ones; an
agent's cost.json stands in the folder with the agent's name. With five seeds or more the intervals are Student's. With
fewer the seeds' values are printed in their place.
"""
import argparse
import csv
import glob
import json
import math
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from evaluate import markdown, metrics_of, printable  # noqa: E402
from records import COSTS, die  # noqa: E402

STUDENT = {  # degrees of freedom: the 97.5% quantile of Student's t; for a number in between, the next smaller one's
    4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 10: 2.228, 12: 2.179, 15: 2.131, 20: 2.086, 30: 2.042,
    60: 2.000}


def over_seeds(values, least=-math.inf, most=math.inf):
    """{"value", "low", "high", "values"}: the mean of independent training runs and its 95% t interval.

    values: one per seed. The interval is cut at `least` and `most`, the limits of the metric. Below five seeds low and
    high are None: Student's interval of so few says nothing (of 0% and 100% it is -585% to 685%).
    """
    mean = float(np.mean(values))
    low = high = None
    if len(values) >= 5:
        t = STUDENT[max(freedom for freedom in STUDENT if freedom < len(values))]
        half = t * float(np.std(values, ddof=1)) / math.sqrt(len(values))
        low = max(least, mean - half)
        high = min(most, mean + half)
    return {"value": mean, "low": low, "high": high, "values": list(values)}


def cell(values, unit, signed=False):
    """Values of several seeds as text: 60.0% [12.1, 100.0], or of a few seeds 50.0% (40.0, 60.0)."""
    scale = 100 if unit else 1
    limits = (-1 if signed else 0, 1) if unit else ()
    numbers = over_seeds(values, *limits)
    value = shown(scale * numbers["value"], signed)
    if unit == "%" and not signed:
        value += "%"
    if numbers["low"] is None:
        each = [shown(scale * one, signed) for one in values]
        return f"{value} ({', '.join(each)})"
    return f"{value} [{shown(scale * numbers['low'], signed)}, {shown(scale * numbers['high'], signed)}]"


def shown(value, signed=False):
    return f"{value:+.1f}" if signed else f"{value:.1f}"


def kept_rows(file, columns, folders, rows_of):
    """The rows of a table that is kept as tab-separated text, a dictionary each, once those of `folders` are in it.

    A folder is a seed: rows_of(folder), lists of texts in the order of `columns`, replace the rows of that seed.
    """
    rows = []
    if file.is_file():
        with open(file, encoding="utf-8", newline="") as lines:
            rows = list(csv.DictReader(lines, delimiter="\t"))
    for folder in map(Path, folders):
        new = [dict(zip(columns, row)) for row in rows_of(folder)]
        if not new:
            die(f"{folder}: nothing is finished there; make study SEEDS={folder.name} first")
        rows = [row for row in rows if row["seed"] != folder.name] + new
    if folders:
        with open(file, "w", encoding="utf-8", newline="") as lines:
            writer = csv.DictWriter(lines, columns, delimiter="\t", lineterminator="\n")
            writer.writeheader()
            writer.writerows(sorted(rows, key=lambda row: row["seed"]))
    return rows


def files_of(pattern):
    """The files of a pattern in the order of their names, or the one file that it names."""
    return sorted(map(Path, glob.glob(pattern))) or [Path(pattern)]


def seeds_of(pattern):
    """{seed: what its file of metrics holds, with "cost"}."""
    found = {}
    for path in files_of(pattern):
        seed = path.parent.name
        if seed in found:
            die(f"{path}: {path.parent} holds another file of {pattern} too; a folder is a seed")
        if not path.is_file():
            die(f"{path}: no such file; run evaluate.py first, or name another")
        try:
            found[seed] = json.loads(path.read_text(encoding="utf-8"))
            metrics_of(found[seed]["domain"])
        except (ValueError, KeyError, TypeError):
            die(f"{path} holds no metrics; evaluate.py writes such files")
        cost = path.parent / path.name.split(".")[0] / "cost.json"
        found[seed]["cost"] = json.loads(cost.read_text(encoding="utf-8")) if cost.is_file() else {}
    return found


def values_of(seeds, name):
    """{seed: value} of a metric, or nothing where a seed lacks it."""
    if not all(metrics.get(name) for metrics in seeds.values()):
        return {}
    return {seed: metrics[name]["value"] for seed, metrics in seeds.items()}


def table(agents):
    """Metrics, differences to the first agent and costs of {agent: {seed: metrics}} as rows of texts."""
    base = next(iter(agents))
    domain = next(iter(agents[base].values()))["domain"]
    rows = [("seeds", *[str(len(seeds)) for seeds in agents.values()])]
    for name, metric in metrics_of(domain).items():
        values = [values_of(seeds, name) for seeds in agents.values()]
        rows.append((metric.heading, *[cell(list(of.values()), metric.unit) if of else "" for of in values]))
        if metric.compared:
            apart = [""]
            for ours in values[1:]:
                both = [ours[seed] - values[0][seed] for seed in ours if seed in values[0]]
                apart.append(cell(both, metric.unit, signed=True) if both else "")
            rows.append((f"{metric.heading}, vs {base}", *apart))
    for name in COSTS:
        texts = []
        for seeds in agents.values():
            costs = [metrics["cost"].get(name) for metrics in seeds.values()]
            texts.append("" if None in costs else f"{np.mean(costs):,.0f}")
        rows.append((f"cost: {name.replace('_', ' ')}", *texts))
    return [("", *agents), *[row for row in rows if any(row[1:])]]


def notes(agents):
    """Each seed's values, and what a mean hides, as sentences."""
    said = []
    every = list(dict.fromkeys(seed for seeds in agents.values() for seed in seeds))
    for agent, seeds in agents.items():
        for name, metric in metrics_of(next(iter(seeds.values()))["domain"]).items():
            values = values_of(seeds, name)
            if metric.compared and values:
                each = ", ".join(shown(100 * value) for value in values.values())
                said.append(f"{agent}: {metric.heading}, seeds {', '.join(values)}: {each}")
        for seed, metrics in seeds.items():
            ended = ", ".join(f"{end} {count:,}" for end, count in metrics["finish"].items())
            said.append(f"{agent}, seed {seed}: {metrics['tasks']:,} tasks; episodes of {metrics['in']} ended: {ended}")
            said += [f"{agent}, seed {seed}: {count:,} x {error}" for error, count in metrics["errors"].items()]
        missing = [seed for seed in every if seed not in seeds]
        if missing:
            said.append(f"{agent}: WARNING: no seed {', '.join(missing)} here; differences are over what both have")
    for seed in every:
        tasks = {seeds[seed]["tasks"] for seeds in agents.values() if seed in seeds}
        if len(tasks) > 1:
            numbers = " or ".join(map(str, sorted(tasks)))
            said.append(f"WARNING: agents of seed {seed} played {numbers} tasks; evaluate.py --compare shows them on "
                        "those that all have")
    return said


def check_scoring(agents):
    """Stop unless all files were scored alike."""
    kinds = {}
    for seeds in agents.values():
        for metrics in seeds.values():
            kind = {key: metrics[key] for key in ("domain", "mode", "encoder", "view", "rewarded") if key in metrics}
            kinds.setdefault(str(kind), metrics["in"])
    if len(kinds) > 1:
        die(f"{' and '.join(kinds.values())} cannot be compared: found {' and '.join(kinds)}; score both alike")


def named_pattern(pair):
    """An argparse type: NAME=PATTERN as (name, pattern)."""
    name, _, pattern = pair.partition("=")
    if not name or not pattern:
        raise argparse.ArgumentTypeError(f"takes NAME=FILES, such as base='runs/*/base.jsonl', not {pair!r}")
    return name, pattern


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("agents", nargs="+", type=named_pattern, metavar="NAME=FILES",
                        help="the metrics of an agent, one file a seed; differences are against the first agent")
    args = parser.parse_args()
    if len(dict(args.agents)) < len(args.agents):
        parser.error(f"each agent needs another name, found {', '.join(name for name, _ in args.agents)}")
    agents = {name: seeds_of(pattern) for name, pattern in args.agents}
    check_scoring(agents)
    print(markdown(table(agents)))
    for note in notes(agents):
        print(printable(note))


if __name__ == "__main__":
    main()
