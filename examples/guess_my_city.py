"""Another environment in one file: the agent guesses a city. Tasks, demonstrations, a row in two tables.

    python examples/guess_my_city.py tasks                     # data/city/train.jsonl and demonstrations.jsonl
    python train_policy.py --domain city --method sft --model tiny --lr 2e-3 --batch-size 8 --run-name city
    python examples/guess_my_city.py rollout --samples 24 --run-name city
    python examples/guess_my_city.py evaluate --run-name city
    python train_critic.py --domain city --run-name city --lr 3e-4 --beta 5 --nll 2
    python examples/guess_my_city.py rollout --candidates 4 --run-name city
    python train_critic.py --score runs/city/train.candidates.jsonl --run-name city
    python train_policy.py --domain city --run-name city --lr 2e-4 --beta 2 --nll 1
    python examples/guess_my_city.py grpo --run-name city --max-tokens 32 --lr 3e-4    # instead: on-policy

`rollout`, `evaluate` and `grpo` are the scripts themselves, after this file has added its rows. The trainers need to
know nothing. The scripted human answers from a task's facts: what is asked about, example questions, and a reply.
"""
import importlib
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import evaluate  # noqa: E402
import rollout  # noqa: E402
from listener import scripted_reply  # noqa: E402
from records import ANSWER_MARK, EPISODE_KEY, TASK_KEY, Output, die, run_script  # noqa: E402

REQUEST = "I have a city in mind. Which one is it?"
AGENT = "A human has a city in mind. When you know the city, write I WANT TO ANSWER: and its name."
CITIES = {    # {name: (its continent, whether it is by the sea, whether it is a capital)}
    name: (continent, *traits) for continent, names in {
        "Europe": "Lisbon Barcelona Madrid Munich", "Asia": "Tokyo Mumbai Kabul Lahore",
        "Africa": "Dakar Durban Kampala Kano", "America": "Lima Miami Bogota Denver"}.items()
    for name, traits in zip(names.split(), [(True, True), (True, False), (False, True), (False, False)])}


def task_of(city):
    continent, sea, capital = CITIES[city]
    facts = [("continent", "Which continent is it on?", f"It is in {continent}."),
             ("sea", "Is it by the sea?", "Yes, by the sea." if sea else "No, it is inland."),
             ("capital", "Is it a capital?", "Yes, a capital." if capital else "No, it is no capital.")]
    return {"task_id": f"city-{city}", "domain": "city", "problem_description": REQUEST, "ground_truth": city,
            "facts": [{"detail": name, "questions": [question], "reply": reply} for name, question, reply in facts]}


def demonstration(task, sample, rng):
    """A dialogue that asks for each trait with probability 0.6, and then guesses a city that fits the replies."""
    dialogue, fits = [{"role": "user", "content": REQUEST}], list(CITIES)
    for place, fact in enumerate(task["facts"]):
        if rng.random() < 0.6:
            dialogue.append({"role": "assistant", "content": fact["questions"][0]})
            reply, told = scripted_reply(task, dialogue)
            dialogue.append({"role": "user", "content": reply, "told": told})
            fits = [city for city in fits if CITIES[city][place] == CITIES[task["ground_truth"]][place]]
    dialogue.append({"role": "assistant", "content": f"{ANSWER_MARK}\n{rng.choice(fits)}"})
    return {"task_id": task["task_id"], "sample": sample, "task": task, "system": AGENT, "dialogue_history": dialogue}


def write_tasks():
    tasks, rng = list(map(task_of, CITIES)), random.Random(0)
    dialogues = [demonstration(task, sample, rng) for sample in range(400) for task in tasks]
    for name, records, key in (("train", tasks, TASK_KEY), ("demonstrations", dialogues, EPISODE_KEY)):
        output = Output(f"data/city/{name}.jsonl", {"script": "guess_my_city"}, {}, key=key)
        for record in records:
            if output.key_of(record) not in output.done:    # after a kill
                output.write(record)


def score_guesses(records, args):
    """1 if the answer is the city, else 0."""
    for record in records:
        yield record | {"reward": float((record["answer"] or "").strip(" .\n") == record["task"]["ground_truth"])}


rollout.ENVIRONMENTS["city"] = rollout.Environment(
    AGENT, AGENT, "You have this city in mind: {reference}. The dialogue: {dialogue}. Answer in one short sentence.",
    rollout.functions_human, reply_limit=100, needs=("facts",))
evaluate.ENVIRONMENTS["city"] = evaluate.Environment(score_guesses)


def main():
    stage = sys.argv.pop(1) if len(sys.argv) > 1 else ""
    if stage in ("rollout", "grpo"):
        turns = [] if "--candidates" in sys.argv else ["--max-turns", "5"]
        sys.argv[1:1] = ["--domain", "city", *turns]    # before your own flags, which win
    if stage == "tasks" and len(sys.argv) > 1:
        die("tasks takes no flags")
    stages = {"tasks": write_tasks, "rollout": rollout.main, "evaluate": evaluate.main,
              "grpo": lambda: importlib.import_module("grpo").main()}
    if stage not in ("", "-h", "--help", *stages):
        die(f"{stage}: no such stage; the stages are {', '.join(stages)}")
    stages.get(stage, lambda: print(__doc__))()


if __name__ == "__main__":
    run_script(main)
