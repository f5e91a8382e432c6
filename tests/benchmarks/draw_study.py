"""RESULTS.md's figure of the study: how often critics with and without c order two candidates of a turn right, by the
number of tasks that they learnt from, a panel a world, with 95% intervals over tasks; and one HTML page of it and of the
tables. Needs matplotlib, which `make study-report` installs.

    make study-report
"""
import argparse
import html
import json
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt

NAMES = {"four": "four families", "eight": "eight families", "vague": "eight families, vague requests"}
LINES = {"full": ("critic with c", "#1b6ca8", "o"), "without-c": ("critic without c", "#c8553d", "s")}

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--study", default="runs/study", help="folder of the worlds (default: runs/study)")
parser.add_argument("--out", default="study.svg", help="picture to write (default: study.svg)")
args = parser.parse_args()

matplotlib.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "study", "font.size": 9, "axes.spines.top": False,
                        "axes.spines.right": False}
worlds = [world for world in NAMES if (Path(args.study) / world / "critics-400.json").is_file()]
if not worlds:
    parser.error(f"{args.study} has no world with critics of 400 tasks: make study CELLS=surface, then make study-report")
figure, panels = plt.subplots(1, len(worlds), figsize=(3.2 * len(worlds), 2.6), sharey=True, squeeze=False)
for world, panel in zip(worlds, panels[0]):
    found = {int(path.stem.split("-")[1]): json.loads(path.read_text())["critics"]
             for path in Path(args.study, world).glob("critics-[0-9]*.json")}
    sizes = sorted(found)
    for name, (label, colour, mark) in LINES.items():
        rows = [next(critic["measures"]["pairs in the right order"] for key, critic in found[size].items()
                     if key.startswith(name)) for size in sizes]
        panel.plot(sizes, [row["value"] for row in rows], mark + "-", color=colour, label=label, markersize=4)
        panel.fill_between(sizes, [row["low"] for row in rows], [row["high"] for row in rows], color=colour, alpha=0.15,
                           linewidth=0)
    panel.set(title=NAMES[world], xlabel="tasks of critic data", xscale="log")
    panel.set_xticks(sizes, sizes, minor=False)
    panel.minorticks_off()
panels[0][0].set_ylabel("pairs in the right order")
panels[0][0].legend(frameon=False, loc="upper left")
figure.tight_layout()
figure.savefig(args.out, metadata={"Date": None})

page = ["<!DOCTYPE html><meta charset='utf-8'><title>The study</title><style>body { font: 15px sans-serif; margin: 2em }",
        "td, th { padding: 2px 10px; text-align: left; border-bottom: 1px solid #ddd }</style><h1>The study</h1>",
        Path(args.out).read_text().partition("?>")[2]]
for world in worlds:
    page.append(f"<h2>{NAMES[world]}</h2><table>")
    for line in Path(args.study, world, "report.md").read_text().splitlines():
        if line.startswith("## "):
            page.append(f"</table><h3>{html.escape(line[3:])}</h3><table>")
        elif line.startswith("| "):
            page.append("<tr>" + "".join(f"<td>{html.escape(cell.strip())}</td>" for cell in line.split("|")[1:-1]))
    page.append("</table>")
Path(args.study, "report.html").write_text("\n".join(page))
print(f"wrote {args.out} and {args.study}/report.html")
