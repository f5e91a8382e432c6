"""Rounds on fresh dialogues: success and cost after each round of each method, the differences, and a figure.

    python study/rounds.py                         # print the tables of study/rounds.tsv, draw its figure
    python study/rounds.py --add runs/asking/46    # add a finished seed first

Round 1 is the seed's own folder. Round n of a method is the folder SEED-METHOD-n beside it.
"""
import argparse
import json
import sys
from itertools import count
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from leaderboard import AGENTS, COSTS, TEMPERATURES, cpu_minutes, leads_of, mean, shares  # noqa: E402
from over_seeds import cell, kept_rows  # noqa: E402

METHODS = {    # the agent that ends each round
    "dpo": "trial-imitated-dpo-2",
    "sweet": "trial-half-twice",
}
NAMES = {"dpo": "multi-turn DPO after imitation", "sweet": "SWEET-RL, surer half twice"}
COLUMNS = ["seed", "method", "round", *TEMPERATURES, *COSTS, "cpu_minutes"]
COMPARED = [("sweet", 1, "dpo", 1), ("sweet", 2, "dpo", 2), ("sweet", 3, "dpo", 3),    # equal episodes
            ("sweet", 1, "dpo", 2), ("sweet", 2, "dpo", 4)]    # about equal tokens


def rows_of(folder):
    """The rows of one seed, each a list in the order of COLUMNS. Costs are sums over the rounds so far."""
    for method, agent in METHODS.items():
        spent = dict.fromkeys(COSTS, 0)
        minutes = 0.0
        for number in count(1):
            here = folder if number == 1 else folder.with_name(f"{folder.name}-{method}-{number}")
            files = [here / f"{agent}.test-{temperature}.metrics.json" for temperature in TEMPERATURES]
            if not all(file.is_file() for file in files):
                break
            successes = [json.loads(file.read_text(encoding="utf-8"))["success"]["value"] for file in files]
            cost = json.loads((here / agent / "cost.json").read_text(encoding="utf-8"))
            spent = {name: spent[name] + cost[name] for name in COSTS}
            minutes += float(cpu_minutes(here / "cpu.tsv", AGENTS[agent].stages))
            shown = [f"{100 * success:.1f}" for success in successes]
            yield [folder.name, method, str(number), *shown, *map(str, spent.values()), f"{minutes:.1f}"]


def print_rounds(groups):
    headings = ["round", "seeds", *TEMPERATURES.values(), *COSTS.values(), "CPU minutes"]
    print(f"| | {' | '.join(headings)} |\n|---{'|---' * len(headings)}|")
    for (method, number), group in groups.items():
        cells = [cell(shares(group, temperature), "%") for temperature in TEMPERATURES]
        cells += [mean(group, column, 0) for column in COSTS] + [mean(group, "cpu_minutes", 1)]
        print(f"| {NAMES[method]} | {number} | {len(group)} | {' | '.join(cells)} |")


def print_differences(groups):
    """How far SWEET-RL is ahead of multi-turn DPO, in points, on the seeds that both have."""
    print(f"\n| SWEET-RL's round | less multi-turn DPO's round | seeds | {' | '.join(TEMPERATURES.values())} |")
    print("|---|---|---|---|---|")
    for ours, our_round, theirs, their_round in COMPARED:
        others = {row["seed"]: row for row in groups.get((theirs, their_round), [])}
        pairs = [(row, others[row["seed"]]) for row in groups.get((ours, our_round), []) if row["seed"] in others]
        if pairs:
            print(f"| {our_round} | {their_round} | {len(pairs)} | {leads_of(pairs, TEMPERATURES)} |")


WIDTH, HEIGHT, LEFT, TOP, GAP = 300, 240, 50, 40, 70    # pixels: a panel, its margins, the gap between the panels
COLOURS = {"dpo": "#d97706", "sweet": "#2563eb"}
PANELS = {"simulator_calls": "human's replies", "sampled_tokens": "sampled tokens"}


def draw(groups):
    """The figure as SVG: success at 0.3 after each round over what it cost, a panel a cost, a dot a seed."""
    svg = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + 2 * (WIDTH + GAP)} {TOP + HEIGHT + 100}" '
           'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>']
    for panel, (column, heading) in enumerate(PANELS.items()):
        left = LEFT + panel * (WIDTH + GAP)
        most = 1.05 * max(float(row[column]) for group in groups.values() for row in group)

        def place(cost, success):
            return left + WIDTH * cost / most, TOP + HEIGHT * (1 - success / 100)

        for percent in range(0, 101, 20):
            x, y = place(0, percent)
            svg.append(f'<line x1="{x}" x2="{x + WIDTH}" y1="{y}" y2="{y}" stroke="#ddd"/>'
                       f'<text x="{x - 8}" y="{y + 4}" text-anchor="end">{percent}%</text>')
        step = 400_000 if column == "sampled_tokens" else 10_000
        for cost in range(0, int(most), step):
            x, y = place(cost, 0)
            svg.append(f'<text x="{x:.0f}" y="{y + 18}" text-anchor="middle">{cost // 1000:,}k</text>')
        svg.append(f'<text x="{left + WIDTH / 2}" y="{TOP + HEIGHT + 40}" text-anchor="middle">{heading}</text>')
        for method in METHODS:
            points = []
            for (name, _), group in groups.items():
                if name == method:
                    at = [place(float(row[column]), float(row["0.3"])) for row in group]
                    svg += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{COLOURS[method]}" fill-opacity="0.35"/>'
                            for x, y in at]
                    points.append((sum(x for x, _ in at) / len(at), sum(y for _, y in at) / len(at)))
            line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            svg.append(f'<polyline points="{line}" fill="none" stroke="{COLOURS[method]}" stroke-width="2.5"/>')
    svg.append(f'<text x="{LEFT}" y="22" font-weight="bold">success at temperature 0.3 after each round</text>')
    for n, method in enumerate(METHODS):
        x, y = LEFT + 230 * n, TOP + HEIGHT + 75
        svg.append(f'<line x1="{x}" x2="{x + 20}" y1="{y}" y2="{y}" stroke="{COLOURS[method]}" stroke-width="3"/>'
                   f'<text x="{x + 26}" y="{y + 4}">{NAMES[method]}</text>')
    return "\n".join([*svg, "</svg>\n"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--add", nargs="+", default=[], metavar="FOLDER", help="folders of finished seeds")
    args = parser.parse_args()
    groups = {}    # (method, round): its rows
    for row in kept_rows(HERE / "rounds.tsv", COLUMNS, args.add, rows_of):
        groups.setdefault((row["method"], int(row["round"])), []).append(row)
    groups = dict(sorted(groups.items(), key=lambda item: (list(METHODS).index(item[0][0]), item[0][1])))
    print_rounds(groups)
    print_differences(groups)
    (HERE / "rounds.svg").write_text(draw(groups), encoding="utf-8")


if __name__ == "__main__":
    main()
