"""Draw the main table: each method's success on the test tasks, a dot a seed, the mean and its 95% interval.

    python evaluate.py --compare base='runs/study/*/base.test.scored.jsonl' ... --json runs/study/test.json
    python evaluate.py --compare base='runs/study/*/base.half.scored.jsonl' ... --json runs/study/half.json
    python study/draw_agents.py --in runs/study/test.json runs/study/half.json --titles 'temperature 1' 'temperature 0.5' \
        --out study/agents.svg
"""
import argparse
import json
from html import escape
from pathlib import Path

LABELS = 200           # pixels for the names of the methods
PANEL, GAP = 240, 24   # width of a panel, and what lies between two
ROW, TOP = 26, 46      # height of a method's row, and where the first one begins
COLOUR = "#2563eb"


def draw(results, titles):
    """The figure as SVG text. results: of each panel {method: evaluate.py --json's result}."""
    names = list(results[0])
    low = min(min(run["metrics"]["success"]["values"]) for result in results for run in result.values())
    high = max(max(run["metrics"]["success"]["values"]) for result in results for run in result.values())
    first, last = int(10 * low) / 10, int(10 * high + 1) / 10    # whole tens of percent
    width, bottom = LABELS + len(results) * (PANEL + GAP), TOP + ROW * len(names)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {bottom + 30}" font-family="sans-serif" '
             f'font-size="12"><rect width="100%" height="100%" fill="white"/>']
    for row, name in enumerate(names):
        parts.append(f'<text x="{LABELS - 12}" y="{TOP + ROW * row + 17}" text-anchor="end">{escape(name)}</text>')
    for panel, (result, title) in enumerate(zip(results, titles)):
        left = LABELS + panel * (PANEL + GAP)

        def x(share):
            return left + PANEL * (share - first) / (last - first)

        parts.append(f'<text x="{left + PANEL / 2}" y="20" text-anchor="middle" font-weight="bold">'
                     f'success at {escape(title)}</text>')
        for tens in range(round(10 * first), round(10 * last) + 1):
            parts.append(f'<line x1="{x(tens / 10)}" x2="{x(tens / 10)}" y1="{TOP - 8}" y2="{bottom}" stroke="#ddd"/>')
            parts.append(f'<text x="{x(tens / 10)}" y="{bottom + 18}" text-anchor="middle">{10 * tens}%</text>')
        for row, name in enumerate(names):
            success, y = result[name]["metrics"]["success"], TOP + ROW * row + 13
            for value in success["values"]:
                parts.append(f'<circle cx="{x(value):.1f}" cy="{y}" r="3.5" fill="{COLOUR}" fill-opacity="0.35"/>')
            if success["low"] is not None:
                left_end, right_end = max(first, success["low"]), min(last, success["high"])
                parts.append(f'<line x1="{x(left_end):.1f}" x2="{x(right_end):.1f}" y1="{y}" y2="{y}" '
                             f'stroke="{COLOUR}" stroke-width="2"/>')
            mean = x(success["value"])
            parts.append(f'<line x1="{mean:.1f}" x2="{mean:.1f}" y1="{y - 8}" y2="{y + 8}" stroke="{COLOUR}" '
                         'stroke-width="3"/>')
    return "\n".join([*parts, "</svg>\n"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--in", dest="inputs", nargs="+", required=True, type=Path, help="evaluate.py --json, a panel each")
    parser.add_argument("--titles", nargs="+", required=True, help="the panels' titles")
    parser.add_argument("--out", required=True, type=Path, help="the SVG to write")
    args = parser.parse_args()
    results = [json.loads(path.read_text(encoding="utf-8")) for path in args.inputs]
    args.out.write_text(draw(results, args.titles), encoding="utf-8")
    print(f"wrote {args.out}")


if __name__ == "__main__":
    main()
