"""The recipes over fresh seeds: a table of success and cost, the differences, and a figure.

    python study/leaderboard.py                        # print the tables of study/leaderboard.tsv, draw its figure
    python study/leaderboard.py --add runs/study/51    # add a finished seed first
    python study/leaderboard.py --table study/asking.tsv --ours trial-half-full --add runs/asking/41
"""
import argparse
import json
import re
import sys
from html import escape
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from over_seeds import cell, kept_rows  # noqa: E402


class Agent(NamedTuple):
    name: str
    stages: list    # a pattern for the end of each command behind the agent, from the base agent on


EPISODES = [r"--limit \d+ --samples 6 ((?!--out).)*", "evaluate.py .*--split train"]
TWICE = ["--limit 800 --samples 6 .*", "evaluate.py .*twice.trajectories.jsonl", "trial-twice-rejection"]
IMITATION = [*EPISODES, "trial-rejection-2"]


def sweet(critic):
    """The commands of SWEET-RL between the episodes and the policy."""
    return [f"critic-{critic}", "--candidates 4 .*", rf"--score .*/ranked-{critic}(\.part)?\.jsonl"]


AGENTS = {    # by the name of its folder
    "base": Agent("base", []),
    "trial-rejection-2": Agent("rejection fine-tuning", IMITATION),
    "trial-rejection-1": Agent("rejection fine-tuning, six epochs", [*EPISODES, "trial-rejection-1"]),
    "trial-dpo-3": Agent("multi-turn DPO", [*EPISODES, "trial-dpo-3"]),
    "trial-imitated-dpo-2": Agent("multi-turn DPO after imitation", [*IMITATION, "trial-imitated-dpo-2"]),
    "trial-sweet-1": Agent("SWEET-RL", [*EPISODES, *sweet("full"), "trial-sweet-1"]),
    "trial-sweet-3": Agent("SWEET-RL, NLL weight 0.02", [*EPISODES, *sweet("nll-0.02"), "trial-sweet-3"]),
    **{f"trial-{name}": Agent(title, [*IMITATION, *sweet(critic), f"trial-{name}"]) for name, critic, title in [
        ("imitated-sweet-1", "full", "SWEET-RL after imitation, NLL weight 2"),
        ("full-without-c", "full-without-c", "the same without c"),
        ("half-full", "full", "NLL weight 2, stop pairs, surer half, two epochs"),
        ("half-full-without-c", "full-without-c", "the same without c"),
        ("imitated-sweet-3", "nll-0.02", "SWEET-RL after imitation, NLL weight 0.02"),
        ("imitated-sweet-2", "nll-0.2", "SWEET-RL after imitation, NLL weight 0.2"),
        ("without-c", "without-c", "NLL weight 0.2, without c"),
        ("stop-imitated-sweet-2", "nll-0.2", "NLL weight 0.2, stop pairs"),
        ("stop-without-c", "without-c", "the same without c"),
        ("random-nll-0.2", "nll-0.2", "NLL weight 0.2, stop pairs, a random half"),
        ("half-nll-0.2", "nll-0.2", "NLL weight 0.2, stop pairs, surer half"),
        ("half-twice", "nll-0.2", "NLL weight 0.2, stop pairs, surer half, two epochs"),
        ("unlike-imitated-sweet-2", "nll-0.2", "NLL weight 0.2, stop pairs, without the alike pairs"),
        ("likelihood", "likelihood", "likelihood alone in place of Eq. 2"),
        ("likelihood-without-c", "likelihood-without-c", "the same without c"),
        ("half-likelihood", "likelihood", "likelihood alone, stop pairs, surer half, two epochs"),
        ("half-likelihood-without-c", "likelihood-without-c", "the same without c"),
    ]},
    "trial-twice-rejection": Agent("rejection fine-tuning, twice the episodes", TWICE),
    "trial-twice-imitated-dpo": Agent("multi-turn DPO after imitation, twice the episodes",
                                      [*TWICE, "trial-twice-imitated-dpo"]),
    "trial-twice-longer-dpo": Agent("the same, six epochs", [*TWICE, "trial-twice-longer-dpo"]),
}
TEMPERATURES = {"0.3": "at 0.3", "1": "at 1"}    # of play: its heading
SHARES = ("success", "success_seen", "success_new")
COSTS = {"episodes": "episodes", "simulator_calls": "human's replies", "sampled_tokens": "sampled tokens"}
COLUMNS = ["seed", "agent", *(f"{share} {temperature}" for temperature in TEMPERATURES for share in SHARES), *COSTS,
           "cpu_minutes"]


# ------------------------------------------------------------------------------------------------ a seed's rows


def rows_of(folder):
    """The rows of one seed, from the metrics that evaluate.py wrote, each a list in the order of COLUMNS."""
    folder = Path(folder)
    for agent in AGENTS:
        files = [folder / f"{agent}.test-{temperature}.metrics.json" for temperature in TEMPERATURES]
        if all(file.is_file() for file in files):
            metrics = [json.loads(file.read_text(encoding="utf-8")) for file in files]
            shares = [f"{100 * found[share]['value']:.1f}" for found in metrics for share in SHARES]
            cost = json.loads((folder / agent / "cost.json").read_text(encoding="utf-8"))
            spent = [str(cost[name] if AGENTS[agent].stages else 0) for name in COSTS]
            yield [folder.name, agent, *shares, *spent, cpu_minutes(folder / "cpu.tsv", AGENTS[agent].stages)]


def cpu_minutes(file, stages):
    """CPU time of the commands that match the patterns, or "" if one was not timed."""
    if not file.is_file():
        return ""
    timed = [line.split("\t") for line in file.read_text(encoding="utf-8").splitlines()]
    seconds = 0.0
    for pattern in stages:
        matching = [float(took) for took, command in timed if re.search(rf"{pattern}$", command)]
        if not matching:
            return ""
        seconds += matching[-1]    # the last run counts
    return f"{seconds / 60:.1f}"


# ------------------------------------------------------------------------------------------------ tables and figure


def by_agent(rows):
    """{agent: its rows}, in the order of AGENTS."""
    groups = {agent: [row for row in rows if row["agent"] == agent] for agent in AGENTS}
    return {agent: group for agent, group in groups.items() if group}


def shares(group, column):
    return [float(row[column]) / 100 for row in group]


def mean(group, column, digits):
    values = [float(row[column]) for row in group if row[column]]
    return f"{sum(values) / len(values):,.{digits}f}" if values else ""


def print_leaderboard(rows):
    columns = {"success 0.3": "at 0.3", "success_seen 0.3": "seen", "success_new 0.3": "new", "success 1": "at 1"}
    headings = ["seeds", *columns.values(), *COSTS.values(), "CPU minutes"]
    print(f"| | {' | '.join(headings)} |\n|---{'|---' * len(headings)}|")
    for agent, group in by_agent(rows).items():
        cells = [cell(shares(group, column), "%") for column in columns]
        cells += [mean(group, column, 0) for column in COSTS] + [mean(group, "cpu_minutes", 1)]
        print(f"| {AGENTS[agent].name} | {len(group)} | {' | '.join(cells)} |")


def print_differences(rows, ours):
    """How far one agent is ahead of each other agent, in points, on the seeds that both have."""
    rows_of_ours = {row["seed"]: row for row in rows if row["agent"] == ours}
    print(f"\n| {AGENTS[ours].name}, less | seeds | {' | '.join(TEMPERATURES.values())} |\n|---|---|---|---|")
    for agent, group in by_agent(rows).items():
        pairs = [(rows_of_ours[row["seed"]], row) for row in group if row["seed"] in rows_of_ours]
        if agent != ours and pairs:
            leads = leads_of(pairs, [f"success {temperature}" for temperature in TEMPERATURES])
            print(f"| {AGENTS[agent].name} | {len(pairs)} | {leads} |")


def leads_of(pairs, columns):
    """How far the first row of each pair is ahead of the second in each column, as cells of a table."""
    cells = []
    for column in columns:
        differences = [(float(us[column]) - float(them[column])) / 100 for us, them in pairs]
        cells.append(cell(differences, "%", signed=True))
    return " | ".join(cells)


LABELS, PANEL, GAP, ROW, TOP = 320, 230, 24, 26, 46    # pixels: names, a panel, the gap after it, a row, the first row
BLUE = "#2563eb"


def draw(rows):
    """The figure as SVG: a dot for each seed, a bar for the mean."""
    groups = by_agent(rows)
    bottom = TOP + ROW * len(groups)
    width = LABELS + len(TEMPERATURES) * (PANEL + GAP)
    svg = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {bottom + 30}" font-family="sans-serif" '
           'font-size="12"><rect width="100%" height="100%" fill="white"/>']
    for row, agent in enumerate(groups):
        y = TOP + ROW * row + 17
        svg.append(f'<text x="{LABELS - 12}" y="{y}" text-anchor="end">{escape(AGENTS[agent].name)}</text>')
    for panel, temperature in enumerate(TEMPERATURES):
        left = LABELS + panel * (PANEL + GAP)
        svg.append(f'<text x="{left + PANEL / 2}" y="20" text-anchor="middle" font-weight="bold">success at '
                   f'temperature {temperature}</text>')
        for percent in range(0, 101, 20):
            x = left + PANEL * percent / 100
            svg.append(f'<line x1="{x}" x2="{x}" y1="{TOP - 8}" y2="{bottom}" stroke="#ddd"/>')
            svg.append(f'<text x="{x}" y="{bottom + 18}" text-anchor="middle">{percent}%</text>')
        for row, group in enumerate(groups.values()):
            y = TOP + ROW * row + 13
            values = shares(group, f"success {temperature}")
            for value in values:
                x = left + PANEL * value
                svg.append(f'<circle cx="{x:.1f}" cy="{y}" r="3.5" fill="{BLUE}" fill-opacity="0.35"/>')
            x = left + PANEL * sum(values) / len(values)
            svg.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y - 8}" y2="{y + 8}" stroke="{BLUE}" stroke-width="3"/>')
    return "\n".join([*svg, "</svg>\n"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--add", nargs="+", default=[], metavar="FOLDER", help="folders of finished seeds")
    parser.add_argument("--table", type=Path, default=HERE / "leaderboard.tsv",
                        help="the kept rows (default: %(default)s)")
    parser.add_argument("--ours", default="trial-imitated-sweet-2", choices=list(AGENTS),
                        help="the agent whose lead is printed (default: %(default)s)")
    args = parser.parse_args()
    rows = kept_rows(args.table, COLUMNS, args.add, rows_of)
    print_leaderboard(rows)
    print_differences(rows, args.ours)
    args.table.with_suffix(".svg").write_text(draw(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
