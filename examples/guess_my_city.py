"""Another environment in one file: the agent guesses a city. Tasks, demonstrations, and a row in each of the two tables.

    python examples/guess_my_city.py tasks                     # data/city/train.jsonl and demonstrations.jsonl
    python train_policy.py --domain city --method sft --model tiny --lr 2e-3 --batch-size 8 --run-name city
    python examples/guess_my_city.py rollout --split train --samples 6 --run-name city
    python examples/guess_my_city.py evaluate --split train --run-name city
    python train_critic.py --domain city --run-name city --lr 3e-4 --beta 5 --nll 2
    python examples/guess_my_city.py rollout --split train --candidates 4 --run-name city
    python train_critic.py --score runs/city/train.candidates.jsonl --run-name city
    python train_policy.py --domain city --run-name city --lr 2e-4 --beta 2 --nll 1

`rollout` and `evaluate` are the scripts themselves, with --domain city, after this file has added its rows. The trainers
need to know nothing. The scripted human answers from a task's facts: example questions and their replies.
"""
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import evaluate  # noqa: E402
import human  # noqa: E402
import rollout  # noqa: E402
from records import ANSWER_MARK, EPISODE_KEY, TASK_KEY, Output  # noqa: E402

CITIES = {    # (continent, by the sea, capital): city
    (continent, sea, capital): name for continent, names in {
        "Europe": "Lisbon Barcelona Madrid Munich", "Asia": "Tokyo Mumbai Kabul Lahore",
        "Africa": "Dakar Durban Kampala Kano", "America": "Lima Miami Bogota Denver"}.items()
    for (sea, capital), name in zip([(True, True), (True, False), (False, True), (False, False)], names.split())}
QUESTIONS = {"continent": ["Which continent is it on?", "continent"], "sea": ["Is it by the sea?", "coast or inland"],
             "capital": ["Is it a capital?", "capital city"]}
REQUEST = "I have a city in mind. Which one is it?"
AGENT = ("A human has a city in mind. Ask one short question at a time, in at most {max_turns} turns in all. When you know "
         "the city, write I WANT TO ANSWER: and its name.")


def task_of(city, traits):
    replies = [f"It is in {traits[0]}.", "Yes, by the sea." if traits[1] else "No, it is inland.",
               "Yes, a capital." if traits[2] else "No, it is no capital."]
    facts = [{"detail": detail, "questions": questions, "reply": reply}
             for (detail, questions), reply in zip(QUESTIONS.items(), replies)]
    return {"task_id": f"city-{city}", "domain": "city", "problem_description": REQUEST, "ground_truth": city,
            "facts": facts}


def demonstration(task, sample, rng):
    """A dialogue that asks for each trait with probability 0.6 and guesses a city that fits the replies."""
    dialogue, traits = [{"role": "user", "content": REQUEST}], {name: traits for traits, name in CITIES.items()}
    fits = list(CITIES.values())
    for place, fact in enumerate(task["facts"]):
        if rng.random() < 0.6:
            dialogue.append({"role": "assistant", "content": fact["questions"][0]})
            reply, told = human.scripted_reply(task, dialogue)
            dialogue.append({"role": "user", "content": reply, "told": told})
            fits = [city for city in fits if traits[city][place] == traits[task["ground_truth"]][place]]
    answer = rng.choice(fits)
    dialogue.append({"role": "assistant", "content": f"{ANSWER_MARK}\n{answer}"})
    return {"task_id": task["task_id"], "sample": sample, "domain": "city", "task": task,
            "system": AGENT.replace("{max_turns}", "5"), "dialogue_history": dialogue, "answer": answer}


def write_tasks():
    tasks = [task_of(city, traits) for traits, city in CITIES.items()]
    rng = random.Random(0)
    demonstrations = [demonstration(task, sample, rng) for sample in range(100) for task in tasks]
    for name, records, key in (("train", tasks, TASK_KEY), ("demonstrations", demonstrations, EPISODE_KEY)):
        out = Output(f"data/city/{name}.jsonl", {"script": "guess_my_city"}, {}, key=key)
        for record in records:
            if out.key_of(record) not in out.done:
                out.write(record)


def score_guesses(records, args):
    """1 if the answer is the city, else 0."""
    for record in records:
        right = (record["answer"] or "").strip(" .\n").lower() == record["task"]["ground_truth"].lower()
        yield record | {"reward": float(right)}


rollout.ENVIRONMENTS["city"] = rollout.Environment(
    multi_turn=AGENT, single_turn="A human has a city in mind. Write I WANT TO ANSWER: and its name.",
    model_human="You have this city in mind: {reference}. The dialogue: {dialogue}. Answer in one short sentence.",
    scripted_human=human.functions_human, reply_limit=100, needs=("facts",))
evaluate.ENVIRONMENTS["city"] = evaluate.Environment(score_guesses)

if __name__ == "__main__":
    stage = sys.argv.pop(1) if len(sys.argv) > 1 else "--help"
    if stage == "rollout":
        sys.argv += ["--domain", "city", "--max-turns", "5"] if "--candidates" not in sys.argv else ["--domain", "city"]
    {"tasks": write_tasks, "rollout": rollout.main, "evaluate": evaluate.main}.get(stage, lambda: print(__doc__))()
