"""Agents over seeds: means with 95% intervals, the value of each seed, and differences to the first agent by seed.

    python study/over_seeds.py base='runs/a/*/base.test.metrics.json' sweet='runs/a/*/policy.test.metrics.json'

A seed is a whole training run, named after its folder. The files are the .metrics.json that evaluate.py writes. An
agent's cost.json is read from the folder with the agent's name. With five seeds or more the intervals are Student's.
With fewer, the values of the seeds are printed instead.
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
from evaluate import check_scoring, markdown, metrics_of, named_file, printable, scoring_of  # noqa: E402
from records import COSTS, die  # noqa: E402

STUDENT = {  # degrees of freedom: the 97.5% quantile of Student's t; in between, take the next smaller number's
    4: 2.776, 5: 2.571, 6: 2.447,
    7: 2.365, 8: 2.306, 9: 2.262,
    10: 2.228, 12: 2.179, 15: 2.131,
    20: 2.086, 30: 2.042, 60: 2.000,
}


def over_seeds(values, least=-math.inf, most=math.inf):
    """{"value", "low", "high", "values"}: the mean of independent training runs and its 95% t interval.

    values: one per seed. The interval is cut at the metric's limits `least` and `most`. Below five seeds low and high
    are None, because Student's interval of so few says nothing (of 0% and 100% it is -585% to 685%).
    """
    mean = float(np.mean(values))
    low = high = None
    if len(values) >= 5:
        t = STUDENT[max(freedom for freedom in STUDENT if freedom < len(values))]
        half = t * float(np.std(values, ddof=1)) / math.sqrt(len(values))
        low = max(least, mean - half)
        high = min(most, mean + half)
    return {
        "value": mean,
        "low": low,
        "high": high,
        "values": list(values),
    }


def cell(values, unit, signed=False):
    """Values of several seeds as text: 60.0% [12.1, 100.0], or for a few seeds 50.0% (40.0, 60.0)."""
    scale = 100 if unit else 1
    limits = ()
    if unit:
        limits = (-1, 1) if signed else (0, 1)
    numbers = over_seeds(values, *limits)
    value = shown(scale * numbers["value"], signed)
    if unit == "%" and not signed:
        value += "%"
    if numbers["low"] is None:
        each = [shown(scale * value_of_seed, signed) for value_of_seed in values]
        return f"{value} ({', '.join(each)})"
    low = shown(scale * numbers["low"], signed)
    high = shown(scale * numbers["high"], signed)
    return f"{value} [{low}, {high}]"


def shown(value, signed=False):
    return f"{value:+.1f}" if signed else f"{value:.1f}"


def kept_rows(file, columns, folders, rows_of):
    """The rows of a table of tab-separated text, a dictionary each, after the seeds in `folders` are put into it.

    A folder is a seed. rows_of(folder) gives lists of texts in the order of `columns`; they replace the seed's rows.
    """
    rows = []
    if file.is_file():
        with open(file, encoding="utf-8", newline="") as lines:
            rows = list(csv.DictReader(lines, delimiter="\t"))
    for folder in map(Path, folders):
        new = [dict(zip(columns, row)) for row in rows_of(folder)]
        if not new:
            die(f"{folder}: no finished agent; run make study SEEDS={folder.name} first")
        rows = [row for row in rows if row["seed"] != folder.name] + new
    rows.sort(key=lambda row: int(row["seed"]))
    if folders:
        with open(file, "w", encoding="utf-8", newline="") as lines:
            writer = csv.DictWriter(lines, columns, delimiter="\t", lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    return rows


def files_of(pattern):
    """The files that match a pattern, sorted, or the one file that it names."""
    return sorted(map(Path, glob.glob(str(pattern)))) or [Path(pattern)]


def seeds_of(pattern):
    """{seed: the content of its metrics file, and "cost"}."""
    seeds = {}
    for path in files_of(pattern):
        seed = path.parent.name
        if seed in seeds:
            die(f"{path}: {pattern} matches two files in folders named {seed}; each seed needs its own folder")
        if not path.is_file():
            die(f"{path}: no such file; run evaluate.py first, or name another file")
        try:
            metrics = json.loads(path.read_text(encoding="utf-8"))
            metrics_of(metrics["domain"])
        except (ValueError, KeyError, TypeError):
            die(f"{path} holds no metrics; name a .metrics.json file of evaluate.py")
        cost = path.parent / path.name.split(".")[0] / "cost.json"
        metrics["cost"] = {}
        if cost.is_file():
            metrics["cost"] = json.loads(cost.read_text(encoding="utf-8"))
        seeds[seed] = metrics
    return seeds


def values_of(seeds, name):
    """{seed: value} of a metric, or {} if a seed lacks it."""
    if not all(metrics.get(name) for metrics in seeds.values()):
        return {}
    return {seed: metrics[name]["value"] for seed, metrics in seeds.items()}


def table(agents):
    """Metrics, differences to the first agent and costs of {agent: {seed: metrics}} as rows of texts."""
    base = next(iter(agents))
    domain = next(iter(agents[base].values()))["domain"]
    rows = [("seeds", *[str(len(seeds)) for seeds in agents.values()])]
    for name, metric in metrics_of(domain).items():
        by_agent = [values_of(seeds, name) for seeds in agents.values()]
        cells = [cell(list(values.values()), metric.unit) if values else "" for values in by_agent]
        rows.append((metric.heading, *cells))
        if metric.compared:
            first, *others = by_agent
            cells = [""]
            for values in others:
                differences = [values[seed] - first[seed] for seed in values if seed in first]
                cells.append(cell(differences, metric.unit, signed=True) if differences else "")
            rows.append((f"{metric.heading}, vs {base}", *cells))
    for name in COSTS:
        cells = []
        for seeds in agents.values():
            costs = [metrics["cost"].get(name) for metrics in seeds.values()]
            cells.append("" if None in costs else f"{np.mean(costs):,.0f}")
        rows.append((f"cost: {name.replace('_', ' ')}", *cells))
    return [("", *agents), *[row for row in rows if any(row[1:])]]


def notes(agents):
    """Sentences on each seed's values, and on what a mean hides."""
    sentences = []
    every_seed = list(dict.fromkeys(seed for seeds in agents.values() for seed in seeds))
    for agent, seeds in agents.items():
        domain = next(iter(seeds.values()))["domain"]
        for name, metric in metrics_of(domain).items():
            values = values_of(seeds, name)
            if metric.compared and values:
                each = ", ".join(shown(100 * value) for value in values.values())
                sentences.append(f"{agent}: {metric.heading}, seeds {', '.join(values)}: {each}")
        for seed, metrics in seeds.items():
            where = f"{agent}, seed {seed}"
            ended = ", ".join(f"{end} {count:,}" for end, count in metrics["finish"].items())
            sentences.append(f"{where}: {metrics['tasks']:,} tasks; episodes of {metrics['in']} ended: {ended}")
            sentences += [f"{where}: {count:,} x {error}" for error, count in metrics["errors"].items()]
        missing = [seed for seed in every_seed if seed not in seeds]
        if missing:
            sentences.append(f"{agent}: WARNING: no seed {', '.join(missing)}; differences are over the seeds of both")
    for seed in every_seed:
        tasks = {seeds[seed]["tasks"] for seeds in agents.values() if seed in seeds}
        if len(tasks) > 1:
            numbers = " or ".join(map(str, sorted(tasks)))
            sentences.append(f"WARNING: agents of seed {seed} played {numbers} tasks; evaluate.py --compare uses only "
                             "the tasks that all have")
    return sentences


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("agents", nargs="+", type=named_file, metavar="NAME=FILES",
                        help="metrics of an agent, one file per seed; differences are to the first agent")
    args = parser.parse_args()
    if len(dict(args.agents)) < len(args.agents):
        parser.error(f"agents need different names, found {', '.join(name for name, _ in args.agents)}")
    agents = {name: seeds_of(pattern) for name, pattern in args.agents}
    check_scoring((scoring_of(metrics), metrics["in"]) for seeds in agents.values() for metrics in seeds.values())
    print(markdown(table(agents)))
    for note in notes(agents):
        print(printable(note))


if __name__ == "__main__":
    main()
