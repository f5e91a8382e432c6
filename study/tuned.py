"""Fresh seeds with the settings and the temperature that the trials chose for each method: the leaderboard of recipes.

    python study/tuned.py                                   # print the tables of study/tuned.tsv
    python study/tuned.py --add runs/study/21 runs/study/22 # put finished seeds into it first
"""
import argparse
import json
import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from over_seeds import cell, kept_rows  # noqa: E402

FILE = HERE / "tuned.tsv"
AGENTS = {  # name of the agent's files: its name in the table
    "base": "base",
    "trial-rejection-2": "rejection fine-tuning",
    "trial-dpo-3": "multi-turn DPO",
    "trial-imitated-dpo-2": "multi-turn DPO after imitation",
    "trial-sweet-3": "SWEET-RL",
    "trial-imitated-sweet-2": "SWEET-RL after imitation",
}
STAGES = {  # agent: patterns of the commands behind it, from the base agent on
    "base": [],
    "trial-rejection-2": ["trial-rejection-2"],
    "trial-dpo-3": ["trial-dpo-3"],
    "trial-imitated-dpo-2": ["trial-rejection-2", "trial-imitated-dpo-2"],
    "trial-sweet-3": [r"critic-nll-0\.02", "--candidates .*", r"--score .*ranked-nll-0\.02\.jsonl", "trial-sweet-3"],
    "trial-imitated-sweet-2": ["trial-rejection-2", r"critic-nll-0\.2", "--candidates .*",
                               r"--score .*ranked-nll-0\.2\.jsonl", "trial-imitated-sweet-2"],
}
DATA = ["--samples .*", "evaluate.py .*--split train"]    # what all but the base agent learn from
SHARES = ("success", "success_seen", "success_new")
COLUMNS = ["seed", "agent", "cold", "cold seen", "cold new", "warm", "warm seen", "warm new", "episodes", "replies",
           "tokens", "minutes"]    # cold: temperature 0.3, warm: 1; minutes of CPU


def cpu_minutes(folder, agent):
    """What the commands behind an agent took, or "" where they were not timed."""
    file = Path(folder) / "cpu.tsv"
    if not file.is_file():
        return ""
    lines = [line.split("\t") for line in file.read_text(encoding="utf-8").splitlines()]
    seconds = 0.0
    for pattern in [*DATA, *STAGES[agent]] if STAGES[agent] else []:
        found = [float(took) for took, command in lines if re.search(rf"{pattern}$", command)]
        if not found:
            return ""
        seconds += found[-1]
    return f"{seconds / 60:.1f}"


def rows_of(folder):
    """The rows of one seed, from the metrics that evaluate.py wrote."""
    for agent in AGENTS:
        files = [Path(folder) / f"{agent}.test-{temperature}.metrics.json" for temperature in ("0.3", "1")]
        if not all(file.is_file() for file in files):
            continue
        cold, warm = (json.loads(file.read_text(encoding="utf-8")) for file in files)
        shares = [f"{100 * metrics[name]['value']:.1f}" for metrics in (cold, warm) for name in SHARES]
        cost = json.loads((Path(folder) / agent / "cost.json").read_text(encoding="utf-8"))
        spent = [cost["episodes"], cost["simulator_calls"], cost["sampled_tokens"]] if STAGES[agent] else [0, 0, 0]
        yield [Path(folder).name, agent, *shares, *map(str, spent), cpu_minutes(folder, agent)]


def mean(rows, column):
    values = [float(row[column]) for row in rows if row[column]]
    digits = 1 if column == "minutes" else 0
    return f"{sum(values) / len(values):,.{digits}f}" if values else ""


def print_leaderboard(rows):
    print("| | seeds | at 0.3 | seen | new | at 1 | episodes | human's replies | sampled tokens | CPU minutes |")
    print("|---" * 10 + "|")
    for agent, name in AGENTS.items():
        mine = [row for row in rows if row["agent"] == agent]
        if mine:
            shares = [cell([float(row[column]) / 100 for row in mine], "%")
                      for column in ("cold", "cold seen", "cold new", "warm")]
            spent = [mean(mine, column) for column in ("episodes", "replies", "tokens", "minutes")]
            print(f"| {name} | {len(mine)} | {' | '.join([*shares, *spent])} |")


def print_leads(rows, ours):
    """How far one agent leads each other, seed by seed, in points."""
    by_seed = {(row["seed"], row["agent"]): row for row in rows}
    print(f"\n| {AGENTS[ours]}, less | at 0.3 | at 1 |\n|---|---|---|")
    for agent, name in AGENTS.items():
        both = [(row, by_seed[seed, ours]) for (seed, other), row in by_seed.items()
                if other == agent != ours and (seed, ours) in by_seed]
        if both:
            apart = [[(float(us[column]) - float(them[column])) / 100 for them, us in both]
                     for column in ("cold", "warm")]
            print(f"| {name} | {' | '.join(cell(values, '%', signed=True) for values in apart)} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--add", nargs="+", default=[], metavar="FOLDER", help="folders of finished seeds")
    args = parser.parse_args()
    rows = kept_rows(FILE, COLUMNS, args.add, rows_of)
    print_leaderboard(rows)
    print_leads(rows, "trial-imitated-sweet-2")


if __name__ == "__main__":
    main()
