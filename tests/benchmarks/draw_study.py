"""RESULTS.md's figures of the study, by the number of tasks that were learnt from: how often critics with and without c
order two candidates of a turn right, a panel a world, with 95% intervals over tasks (study.svg); and the agents' success at
temperatures 1, 0.5 and 0, the mean over seeds and each seed (amounts.svg). And one HTML page of them and of the tables. Needs
matplotlib, which `make study-report` installs.

    make study-report
"""
import argparse
import html
import json
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt

NAMES = {"four": "four families", "eight": "eight families", "hazy": "eight families, vague requests"}
TEMPERATURES = {"temperature 1": "test", "temperature 0.5": "half", "temperature 0": "greedy"}
METHODS = {"SWEET-RL": ("sweet", "policy-full", "#1b6ca8", "o"), "multi-turn DPO": ("dpo", "once-dpo", "#c8553d", "^"),
           "rejection fine-tuning": ("rejection", "once-rejection", "#7a9e3b", "s")}
LINES = {"full": ("critic with c", "#1b6ca8", "o"), "without-c": ("critic without c", "#c8553d", "s")}

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--study", default="runs/study", help="folder of the worlds (default: runs/study)")
parser.add_argument("--out", default=".", help="folder of the pictures (default: here)")
args = parser.parse_args()

matplotlib.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "study", "font.size": 9, "axes.spines.top": False,
                        "axes.spines.right": False}
worlds = [world for world in NAMES if (Path(args.study) / world / "critics-400.json").is_file()]
if not worlds:
    parser.error(f"{args.study} has no world with critics of 400 tasks: make study CELLS=surface, then make study-report")


def axes(panel, title, label, sizes):
    panel.set(title=title, xlabel=label, xscale="log")
    panel.set_xticks(sizes, sizes, minor=False)
    panel.minorticks_off()


def finish(figure, panel, label, name, corner):
    panel.set_ylabel(label)
    panel.legend(frameon=False, loc=corner)
    figure.tight_layout()
    figure.savefig(Path(args.out, name), metadata={"Date": None})
    return Path(args.out, name).read_text().partition("?>")[2]


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
    axes(panel, NAMES[world], "tasks of critic data", sizes)
pictures = [finish(figure, panels[0][0], "pairs in the right order", "study.svg", "upper left")]

found = {title: Path(args.study, "four", f"amounts-{kind}.json") for title, kind in TEMPERATURES.items()}
found = {title: json.loads(path.read_text()) for title, path in found.items() if path.is_file()}
if found:
    figure, panels = plt.subplots(1, len(found), figsize=(3.2 * len(found), 2.6), sharey=True, squeeze=False)
    for (title, runs), panel in zip(found.items(), panels[0]):
        for label, (name, of_all, colour, mark) in METHODS.items():
            names = {n: f"{name}-of-{n}" for n in (50, 100, 200)} | {400: of_all}
            of = {n: runs[run].get("seeds", {"the only one": runs[run]}) for n, run in names.items() if run in runs}
            seeds = sorted(set.intersection(*map(set, of.values())) if of else ())    # that have every size
            values = {n: [100 * of[n][seed]["metrics"]["success"]["value"] for seed in seeds] for n in of if seeds}
            panel.plot(list(values), [sum(its) / len(its) for its in values.values()], color=colour, label=label)
            for n, its in values.items():
                panel.plot([n] * len(its), its, mark, color=colour, markersize=3, alpha=0.6)
        axes(panel, title, "tasks, six episodes each", list(names))
    pictures.append(finish(figure, panels[0][0], "success, % of 500 test tasks", "amounts.svg", "lower right"))

page = ["<!DOCTYPE html><meta charset='utf-8'><title>The study</title><style>body { font: 15px sans-serif; margin: 2em }",
        "td, th { padding: 2px 10px; text-align: left; border-bottom: 1px solid #ddd }</style><h1>The study</h1>",
        *pictures]
for world in worlds:
    page.append(f"<h2>{NAMES[world]}</h2><table>")
    for line in Path(args.study, world, "report.md").read_text().splitlines():
        if line.startswith("## "):
            page.append(f"</table><h3>{html.escape(line[3:])}</h3><table>")
        elif line.startswith("| "):
            page.append("<tr>" + "".join(f"<td>{html.escape(cell.strip())}</td>" for cell in line.split("|")[1:-1]))
    page.append("</table>")
Path(args.study, "report.html").write_text("\n".join(page))
print(f"wrote the pictures and {args.study}/report.html")
