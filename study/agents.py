"""The main table and its figure, over seeds. study/agents.tsv keeps a line for each agent of each seed.

    python study/agents.py                         # print the table, draw study/agents.svg
    python study/agents.py --add runs/study/13     # put a finished seed into study/agents.tsv first
"""
import argparse
import json
import sys
from html import escape
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
from over_seeds import kept_rows, over_seeds  # noqa: E402

AGENTS = {  # name of the agent's files: its name in the table
    "base": "base",
    "rejection-ft": "rejection fine-tuning",
    "multi-turn-dpo": "multi-turn DPO",
    "imitated-dpo": "multi-turn DPO after imitation",
    "sweet-full": "SWEET-RL",
    "sweet-without-c": "SWEET-RL without c",
    "imitated-full": "SWEET-RL after imitation",
    "imitated-without-c": "the same without c",
    "twice-rejection": "rejection fine-tuning, twice the episodes",
    "twice-dpo": "multi-turn DPO, twice the episodes",
    "sweet-likelihood-alone": "SWEET-RL, likelihood alone",
    "imitated-likelihood-alone": "after imitation, likelihood alone",
}
MEASURES = {  # column: its heading
    "success": "success",
    "seen": "seen compositions",
    "new": "new compositions",
    "half": "success at temperature 0.5",
}
LABELS, PANEL, ROW, TOP = 260, 230, 26, 46    # pixels: the names, a panel's width, a row's height, the first row
BLUE = "#2563eb"


def rows_of(folder):
    """The lines of one seed, from the metrics that evaluate.py wrote."""
    for agent in AGENTS:
        files = [Path(folder) / f"{agent}.{split}.metrics.json" for split in ("test", "half")]
        if all(file.is_file() for file in files):
            test, half = (json.loads(file.read_text(encoding="utf-8")) for file in files)
            cost = json.loads((Path(folder) / agent / "cost.json").read_text(encoding="utf-8"))
            shares = (test["success"], test["success_seen"], test["success_new"], half["success"])
            yield [Path(folder).name, agent, *(f"{100 * share['value']:.1f}" for share in shares), cost["sampled_tokens"]]


def table(rows):
    """The rows of each agent, as a Markdown table of means over its seeds."""
    lines = [f"| | seeds | {' | '.join(MEASURES.values())} | sampled tokens |", "|---" * (len(MEASURES) + 3) + "|"]
    for agent, name in AGENTS.items():
        if mine := [row for row in rows if row["agent"] == agent]:
            cells = []
            for measure in MEASURES:
                found = over_seeds([float(row[measure]) for row in mine], 0, 100)
                interval = "" if found["low"] is None else f" [{found['low']:.1f}, {found['high']:.1f}]"
                cells.append(f"{found['value']:.1f}%{interval}")
            tokens = sum(int(row["tokens"]) for row in mine) / len(mine)
            lines.append(f"| {name} | {len(mine)} | {' | '.join(cells)} | {tokens:,.0f} |")
    return "\n".join(lines)


def leads(rows, first, second):
    """How far one agent leads another, seed by seed, at both temperatures."""
    by_seed = {(row["seed"], row["agent"]): row for row in rows}
    for measure in ("success", "half"):
        apart = [float(by_seed[seed, first][measure]) - float(by_seed[seed, second][measure])
                 for seed, agent in by_seed if agent == first and (seed, second) in by_seed]
        if apart:
            found = over_seeds(apart)
            interval = "" if found["low"] is None else f" [{found['low']:+.1f}, {found['high']:+.1f}]"
            yield f"{found['value']:+.1f}{interval} ({', '.join(f'{one:+.1f}' for one in apart)})"


def draw(rows):
    """The figure as SVG: a dot for each seed, a bar for the mean."""
    shown = [agent for agent in AGENTS if any(row["agent"] == agent for row in rows)]
    panels = {"success": "success at temperature 1", "half": "at temperature 0.5"}
    bottom = TOP + ROW * len(shown)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LABELS + len(panels) * (PANEL + 24)} {bottom + 30}" '
             'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>']
    for panel, (measure, title) in enumerate(panels.items()):
        left = LABELS + panel * (PANEL + 24)
        parts.append(f'<text x="{left + PANEL / 2}" y="20" text-anchor="middle" font-weight="bold">{title}</text>')
        for percent in range(0, 101, 20):
            x = left + PANEL * percent / 100
            parts.append(f'<line x1="{x}" x2="{x}" y1="{TOP - 8}" y2="{bottom}" stroke="#ddd"/>')
            parts.append(f'<text x="{x}" y="{bottom + 18}" text-anchor="middle">{percent}%</text>')
        for place, agent in enumerate(shown):
            values = [float(row[measure]) for row in rows if row["agent"] == agent]
            y = TOP + ROW * place + 13
            for value in values:
                x = left + PANEL * value / 100
                parts.append(f'<circle cx="{x:.1f}" cy="{y}" r="3.5" fill="{BLUE}" fill-opacity="0.35"/>')
            x = left + PANEL * sum(values) / len(values) / 100
            parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y - 8}" y2="{y + 8}" stroke="{BLUE}" stroke-width="3"/>')
    for place, agent in enumerate(shown):
        y = TOP + ROW * place + 17
        parts.append(f'<text x="{LABELS - 12}" y="{y}" text-anchor="end">{escape(AGENTS[agent])}</text>')
    return "\n".join([*parts, "</svg>\n"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--add", nargs="+", default=[], metavar="FOLDER", help="folders of finished seeds")
    args = parser.parse_args()
    rows = kept_rows(HERE / "agents.tsv", ["seed", "agent", *MEASURES, "tokens"], args.add, rows_of)
    print(table(rows))
    for first, second in (("imitated-full", "multi-turn-dpo"), ("imitated-full", "imitated-dpo"),
                          ("imitated-full", "twice-rejection"), ("imitated-full", "twice-dpo"),
                          ("imitated-full", "sweet-full"), ("sweet-full", "multi-turn-dpo"),
                          ("imitated-full", "imitated-without-c"), ("sweet-full", "sweet-without-c"),
                          ("imitated-full", "imitated-likelihood-alone"), ("sweet-full", "sweet-likelihood-alone")):
        found = list(leads(rows, first, second))
        if found:
            print(f"| {AGENTS[first]}, less {AGENTS[second]} | {' | '.join(found)} |")
    (HERE / "agents.svg").write_text(draw(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
