"""Play an agent at several temperatures and score it, in one process: loading vLLM takes longer than 200 episodes.

    python study/play.py --temperatures 1 0.5 0.3 -- --split val --in TASKS.jsonl --model FOLDER --max-tokens 128

Arguments after -- go to rollout.py. Writes FOLDER.SPLIT-TEMPERATURE.trajectories.jsonl, and evaluate.py's files.
"""
import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import evaluate
import rollout


def call(script, *arguments):
    """Run `python script.py arguments` in this process."""
    sys.argv = [f"{script.__name__}.py", *arguments]
    script.main()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--temperatures", nargs="+", required=True, help="sampling temperatures of the agent")
    parser.add_argument("--split", default="val")
    parser.add_argument("--model", required=True)
    args, others = parser.parse_known_args()
    for temperature in args.temperatures:
        out = f"{args.model}.{args.split}-{temperature}.trajectories.jsonl"
        call(rollout, "--split", args.split, "--model", args.model, "--temperature", temperature, "--out", out,
             *(other for other in others if other != "--"))
        call(evaluate, "--in", out)


if __name__ == "__main__":
    main()
