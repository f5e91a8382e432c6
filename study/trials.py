"""The trials of the tuning seeds: mean success on validation tasks, with the best of each method in bold.

    python study/trials.py                                      # print the table of study/trials.tsv
    python study/trials.py --add runs/study/1 runs/study/2      # add finished seeds first
    python study/trials.py --table study/asking-trials.tsv --add runs/asking/31
"""
import argparse
import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from over_seeds import kept_rows  # noqa: E402

COLUMNS = ["seed", "method", "setting", "temperature", "success"]
TEMPERATURES = ["1", "0.5", "0.3"]    # at which the agents play
SETTINGS = "1234"
METHODS = {
    "rejection": "rejection fine-tuning",
    "dpo": "multi-turn DPO",
    "sweet": "SWEET-RL",
    "imitated-dpo": "multi-turn DPO after imitation",
    "imitated-sweet": "SWEET-RL after imitation",
}


def rows_of(folder):
    """[seed, method, number of the setting, temperature, success in percent] of each trial of a seed."""
    for method in METHODS:
        for number in SETTINGS:
            for temperature in TEMPERATURES:
                file = folder / f"trial-{method}-{number}.val-{temperature}.metrics.json"
                if file.is_file():
                    success = json.loads(file.read_text(encoding="utf-8"))["success"]["value"]
                    yield [folder.name, method, number, temperature, f"{100 * success:.1f}"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--add", nargs="+", default=[], metavar="FOLDER", help="folders of finished seeds")
    parser.add_argument("--table", type=Path, default=HERE / "trials.tsv", help="the kept rows (default: %(default)s)")
    args = parser.parse_args()
    rows = kept_rows(args.table, COLUMNS, args.add, rows_of)
    seeds = sorted({row["seed"] for row in rows})
    print(f"| seeds {', '.join(seeds)} | setting | {' | '.join(TEMPERATURES)} |")
    print("|---" * (2 + len(TEMPERATURES)) + "|")
    for method, name in METHODS.items():
        means = {}    # (setting, temperature): the mean over the seeds
        for number in SETTINGS:
            for temperature in TEMPERATURES:
                trial = [method, number, temperature]
                values = [float(row["success"]) for row in rows if [row[name] for name in COLUMNS[1:4]] == trial]
                if len(values) == len(seeds):
                    means[number, temperature] = sum(values) / len(values)
        for number in SETTINGS:
            cells = []
            for temperature in TEMPERATURES:
                mean = means.get((number, temperature))
                if mean is None:
                    cells.append("")
                else:
                    mark = "**" if mean == max(means.values()) else ""
                    cells.append(f"{mark}{mean:.1f}{mark}")
            if any(cells):
                print(f"| {name} | {number} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
