"""Add up finished runs: means over seeds with 95% intervals, leads by seed, and the picture of README.

    python study/over_seeds.py --add runs/study/1?            # put finished seeds into results.tsv, print, draw
    python study/over_seeds.py --setting easy --lead policy   # print another setting's tables

A run's folder is SETTING/SEED. results.tsv has one line for each number: setting, seed, agent, metric, value. An
agent's numbers are those of AGENT.test.metrics.json (evaluate.py) and of AGENT/cost.json (train_policy.py). A lead is
the mean difference by seed: all agents of a seed share their tasks and their base agent. Intervals are Student's. Below
five seeds they say nothing, so each seed's value is printed instead.
"""
import argparse
import csv
import json
import math
import sys
from html import escape
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from records import atomic_write, die, run_script  # noqa: E402

TABLE = Path(__file__).with_name("results.tsv")
COLUMNS = ["setting", "seed", "agent", "metric", "value"]
AGENTS = {    # name of the folder: title
    "base": "base", "rejection-ft": "rejection fine-tuning", "multi-turn-dpo": "multi-turn DPO",
    "policy-without-c": "SWEET-RL without c", "policy": "SWEET-RL",
    "dpo-after-imitation": "multi-turn DPO after imitation", "after-imitation": "SWEET-RL after imitation",
    "twice-dpo": "multi-turn DPO, twice the episodes",
    "policy-likelihood": "SWEET-RL, likelihood in place of Eq. 2", "policy-sum": "SWEET-RL, sums in Eq. 3",
    "policy-truth": "SWEET-RL, candidates ranked by their worth",
    "grpo": "GRPO", "round-2-dpo": "multi-turn DPO, second round", "round-2-policy": "SWEET-RL, second round"}
SHARES = {"success": "success", "success_seen": "seen", "success_new": "new", "cosine_page": "cosine",
          "choices_right": "choices right", "win_rate": "win rate", "details_told": "details told"}
COSTS = {"episodes": "episodes", "simulator_calls": "human's replies", "sampled_tokens": "sampled tokens",
         "training_tokens": "training tokens"}
PAPER = {"base": 22.4, "rejection-ft": 28.2, "multi-turn-dpo": 34.4, "policy-without-c": 31.2, "policy": 40.4}
# degrees of freedom: the 97.5% quantile of Student's t; in between, the next smaller number's
STUDENT = {4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 10: 2.228, 15: 2.131, 20: 2.086, 60: 2.000}


def rows_of(folder):
    """Yield the lines of results.tsv that a finished run gives."""
    for agent in AGENTS:
        file = folder / f"{agent}.test.metrics.json"
        if file.is_file():
            metrics = json.loads(file.read_text(encoding="utf-8"))
            numbers = {name: 100 * metrics[name]["value"] for name in SHARES if metrics.get(name)}
            cost = folder / agent / "cost.json"
            if cost.is_file() and agent != "base":    # the base agent is where all costs begin
                spent = json.loads(cost.read_text(encoding="utf-8"))
                numbers |= {name: spent[name] for name in COSTS}
            for name, value in numbers.items():
                yield dict(zip(COLUMNS, [folder.parent.name, folder.name, agent, name, f"{value:g}"]))


def kept_rows(folders, table=TABLE):
    """The lines of the table after the runs in `folders` replaced their own earlier lines."""
    rows = list(csv.DictReader(open(table, encoding="utf-8"), delimiter="\t")) if table.is_file() else []
    for folder in map(Path, folders):
        if not folder.absolute().name.isdecimal():
            die(f"{folder}: a run's folder must be named after its seed, as runs/study/11 is")
        new = list(rows_of(folder.absolute()))
        if not new:
            die(f"{folder}: no AGENT.test.metrics.json of a known agent; finish the run first")
        rows = [row for row in rows if (row["setting"], row["seed"]) != (new[0]["setting"], new[0]["seed"])] + new
    if folders:
        rows.sort(key=lambda row: (row["setting"], int(row["seed"])))
        with atomic_write(table) as part, open(part, "w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, delimiter="\t", lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    return rows


def interval(values):
    """(mean, half of the 95% t interval of independent runs, or None below five)."""
    if len(values) < 5:
        return float(np.mean(values)), None
    t = STUDENT[max(freedom for freedom in STUDENT if freedom < len(values))]
    return float(np.mean(values)), t * float(np.std(values, ddof=1)) / math.sqrt(len(values))


def cell(values, sign=""):
    """Percentages of several seeds as text: 60.0 [52.1, 67.9], or for a few seeds 50.0 (40.0, 60.0)."""
    mean, half = interval(values)
    if half is None:
        return f"{mean:{sign}.1f} ({', '.join(f'{value:{sign}.1f}' for value in values)})"
    return f"{mean:{sign}.1f} [{mean - half:{sign}.1f}, {mean + half:{sign}.1f}]"


def print_tables(numbers, lead):
    """numbers: {agent: {metric: {seed: value}}}; lead: the agent whose lead over the others is printed."""
    shown = [name for name in (*SHARES, *COSTS) if any(name in of_agent for of_agent in numbers.values())]
    print(f"| | seeds | {' | '.join((SHARES | COSTS)[name] for name in shown)} |\n|---{'|---' * (len(shown) + 1)}|")
    for agent, metrics in numbers.items():
        values = {name: list(metrics.get(name, {}).values()) for name in shown}
        cells = [(f"{np.mean(found):,.0f}" if name in COSTS else cell(found)) if found else ""
                 for name, found in values.items()]
        print(f"| {AGENTS[agent]} | {max(map(len, metrics.values()))} | {' | '.join(cells)} |")
    if lead in numbers:
        print(f"\n| {AGENTS[lead]}, lead over | seeds | points | seeds where it leads |\n|---|---|---|---|")
        ours = next(iter(numbers[lead].values()))
        for agent, metrics in numbers.items():
            theirs = next(iter(metrics.values()))
            leads = [ours[seed] - theirs[seed] for seed in ours if seed in theirs]
            if agent != lead and leads:
                ahead = sum(difference > 0 for difference in leads)
                print(f"| {AGENTS[agent]} | {len(leads)} | {cell(leads, '+')} | {ahead} |")


LABELS, PANEL, ROW, TOP = 250, 420, 34, 44    # pixels


def draw(numbers, metric="success"):
    """The picture as SVG: a dot for each seed, a bar for the mean, a diamond for the paper's 8B agent."""
    drawn = [agent for agent in [*PAPER, "dpo-after-imitation", "after-imitation"] if metric in numbers.get(agent, {})]
    bottom = TOP + ROW * len(drawn)
    svg = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LABELS + PANEL + 30} {bottom + 34}" '
           'font-family="sans-serif" font-size="13"><rect width="100%" height="100%" fill="white"/>',
           f'<text x="{LABELS}" y="20">success: seeds (dots), mean (bar), the paper\'s 8B agents (diamonds)</text>']
    for percent in range(0, 101, 20):
        x = LABELS + PANEL * percent / 100
        svg.append(f'<line x1="{x}" x2="{x}" y1="{TOP - 10}" y2="{bottom}" stroke="#ddd"/>'
                   f'<text x="{x}" y="{bottom + 18}" text-anchor="middle">{percent}%</text>')
    for row, agent in enumerate(drawn):
        y = TOP + ROW * row + 14
        values = list(numbers[agent][metric].values())
        width = PANEL * np.mean(values) / 100
        svg.append(f'<text x="{LABELS - 12}" y="{y + 5}" text-anchor="end">{escape(AGENTS[agent])}</text>')
        svg.append(f'<rect x="{LABELS}" y="{y - 9}" width="{width:.1f}" height="18" fill="#2563eb" opacity="0.35"/>')
        for value in values:
            svg.append(f'<circle cx="{LABELS + PANEL * value / 100:.1f}" cy="{y}" r="3" fill="#2563eb"/>')
        if PAPER.get(agent):
            x = LABELS + PANEL * PAPER[agent] / 100
            svg.append(f'<path d="M{x - 6:.1f} {y}l6-6 6 6-6 6z" fill="none" stroke="#b91c1c" stroke-width="2"/>')
    return "\n".join([*svg, "</svg>\n"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--add", nargs="+", default=[], metavar="FOLDER", help="folders of finished seeds")
    parser.add_argument("--setting", default="study", help="the setting to print (default: study)")
    parser.add_argument("--lead", default="policy", choices=AGENTS, help="whose lead to print (default: policy)")
    args = parser.parse_args()
    numbers = {agent: {} for agent in AGENTS}
    for row in kept_rows(args.add):
        if row["setting"] == args.setting:
            numbers[row["agent"]].setdefault(row["metric"], {})[row["seed"]] = float(row["value"])
    numbers = {agent: metrics for agent, metrics in numbers.items() if metrics}
    if not numbers:
        die(f"{TABLE} has no setting {args.setting!r}; add finished runs with --add")
    print_tables(numbers, args.lead)
    if args.setting == "study":
        TABLE.with_suffix(".svg").write_text(draw(numbers), encoding="utf-8")


if __name__ == "__main__":
    run_script(main)
