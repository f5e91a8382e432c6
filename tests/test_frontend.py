"""What the frontend's tasks, demonstrations and rollouts claim, from the command line on."""

import asyncio
import json
import random
import re
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "study")]
import evaluate  # noqa: E402
import practice_pages  # noqa: E402
import render  # noqa: E402
import engines  # noqa: E402
import human  # noqa: E402
import rollout  # noqa: E402
from generate_tasks import SPLITS  # noqa: E402
from test_render import WITHOUT, needs_browser  # noqa: E402, F401
from test_train import call, train_critic, train_policy  # noqa: E402

KINDS = list(practice_pages.page_kinds())


@pytest.fixture(scope="module")
def renderer():
    if WITHOUT:
        pytest.skip(WITHOUT)
    with render.Renderer(browsers=2) as r:
        yield r


def run(script, *arguments, cwd, input=None):
    return subprocess.run([sys.executable, str(ROOT / script), *map(str, arguments)], cwd=cwd,
                          capture_output=True, text=True, input=input,
                          env={"PATH": "/usr/bin:/bin:/usr/local/bin", "OMP_NUM_THREADS": "1", "HOME": str(cwd)})


def read(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


# ------------------------------------------------------------------------------------------ tasks


def test_there_are_at_least_eight_kinds_and_enough_combinations():
    assert len(KINDS) >= 8
    total = 0
    for kind in KINDS:
        n = 1
        for c in practice_pages.page_kinds()[kind]["details"]:
            n *= len(c["values"])
        total += n
    assert total * 0.72 > 10_000 and total * 0.2 > 500


@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_choice_is_told_first_and_by_its_own_sentence(renderer, kind):
    choices = practice_pages.page_kinds()[kind]["details"]
    rng = random.Random(kind)
    right = [rng.choice(list(c["values"])) for c in choices]
    reference = renderer.layout(practice_pages.page_source(kind, right))
    for i, c in enumerate(choices):
        wrong = right[:i] + [rng.choice([v for v in c["values"] if v != right[i]])] + right[i + 1:]
        layout = renderer.layout(practice_pages.page_source(kind, wrong))
        said = render.compare_pages(layout, reference)
        assert said and render.is_about(said[0], c["told"]), (c["name"], said)
        assert not [d["name"] for d in choices if d is not c for one in said if render.is_about(one, d["told"])]
        seen = render.choices_right({d["name"]: d["told"] for d in choices}, layout, reference)
        assert seen == {d["name"]: d is not c for d in choices}, "the metric sees this one and no other"
    every = {d["name"]: d["told"] for d in choices}
    assert set(render.choices_right(every, reference, reference).values()) == {True}
    assert set(render.choices_right(every, None, reference).values()) == {False}
    empty = renderer.layout("<html></html>")
    assert set(render.choices_right(every, empty, reference).values()) == {False}


@pytest.mark.parametrize("kind", ["event", "news"])
def test_the_reward_falls_with_the_number_of_wrong_choices(renderer, kind):
    choices, rng, embed = practice_pages.page_kinds()[kind]["details"], random.Random(kind), render.load_encoder("layout")
    totals = [0.0] * (len(choices) + 1)
    for _ in range(5):
        right = [rng.choice(list(c["values"])) for c in choices]
        versions, order = [list(right)], rng.sample(range(len(choices)), len(choices))
        for i in order:
            versions.append(list(versions[-1]))
            versions[-1][i] = rng.choice([v for v in choices[i]["values"] if v != right[i]])
        pictures = renderer.render_many(practice_pages.page_source(kind, values) for values in versions)
        vectors = [embed(picture) for picture in pictures]
        totals = [total + render.cosine(vector, vectors[0]) / 5 for total, vector in zip(totals, vectors)]
    assert totals[0] > 0.9999 and all(a > b for a, b in zip(totals, totals[1:])) and totals[-1] < 0.75, totals


def test_no_page_of_one_split_occurs_in_another():
    splits = {split: set() for split in SPLITS}
    for split in splits:
        for _, page in zip(range(400), practice_pages.draw_pages(KINDS, split, seed=0)):
            splits[split].add(page)
    assert all(len(pages) == 400 for pages in splits.values())
    assert not splits["train"] & splits["test"] and not splits["train"] & splits["val"]


def test_pages_are_drawn_until_they_are_used_up_and_never_twice():
    pages = list(practice_pages.draw_pages(["news"], "test", seed=1))
    assert len(set(pages)) == len(pages) > 100


@needs_browser
def test_tasks_are_written_continued_and_the_same_for_the_same_seed(tmp_path):
    done = run("study/practice_pages.py", "--train", 12, "--val", 1, "--test", 2, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    path = tmp_path / "data/frontend/train.jsonl"
    whole = path.read_bytes()
    tasks = read(path)
    assert len(tasks) == 12 and len({t["ground_truth"] for t in tasks}) == 12
    assert all(t["domain"] == "frontend" and t["problem_description"] and "test_cases" not in t for t in tasks)
    path.write_bytes(whole[:len(whole) // 2])  # cut off in the middle of a line
    assert run("study/practice_pages.py", "--train", 12, "--val", 1, "--test", 2,
               cwd=tmp_path).returncode == 0
    assert path.read_bytes() == whole
    refused = run("study/practice_pages.py", "--kinds", "shop,castle", cwd=tmp_path)
    assert refused.returncode == 2 and "castle" in refused.stderr and len(refused.stderr.strip().splitlines()) == 1


# ------------------------------------------------------------------------------------------ demonstrations and rollouts


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Tasks, demonstrations, and a tiny model that has hardly learnt."""
    if WITHOUT:
        pytest.skip(WITHOUT)
    folder = tmp_path_factory.mktemp("pages")
    done = run("study/practice_pages.py", "--kinds", "shop,login", "--train", 8, "--val", 0,
               "--test", 2, cwd=folder)
    assert done.returncode == 0, done.stderr
    done = run("study/practice_pages.py", "--demonstrations", 12, "--max-turns", 6, cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_ctrl_c_ends_demonstrations_of_pages_quietly_and_without_waiting_for_the_rest(world):
    process = subprocess.Popen([sys.executable, ROOT / "study/practice_pages.py", "--demonstrations",
                                "5000", "--out", "many.jsonl"], cwd=world, text=True, stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE)
    out, deadline = world / "many.jsonl", time.monotonic() + 60
    while time.monotonic() < deadline and not (out.exists() and out.stat().st_size):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=30)[1]
    assert process.returncode == 130 and "Traceback" not in said and out.read_bytes().endswith(b"\n")


def test_a_demonstration_shows_pages_hears_differences_and_answers(world):
    records = read(world / "data/frontend/demonstrations.jsonl")
    assert len(records) == 12
    for r in records:
        roles = [m["role"] for m in r["dialogue_history"]]
        assert roles == ["user", "assistant"] * (len(roles) // 2) and len(roles) <= 12
        *shown, last = [m["content"] for m in r["dialogue_history"] if m["role"] == "assistant"]
        assert all(render.extract_page(page) == page for page in shown)
        assert last == f"I WANT TO ANSWER:\n{r['answer']}" and render.extract_page(last) == r["answer"]


def test_an_agent_that_does_all_it_is_told_ends_with_the_reference_two_choices_a_turn(renderer, world):
    for n, task in enumerate(read(world / "data/frontend/train.jsonl")[:4]):
        history, answer = practice_pages.demonstrate_page(renderer.layout, task, 1.0, 0.0, 10, NoEarlyAnswer(n))
        assert len(history) // 2 <= 2 + (len(task["details"]) + 1) // 2
        assert answer == task["ground_truth"], history
        assert history[-2]["content"] == render.NO_DIFFERENCE
        reference = renderer.layout(task["ground_truth"])
        for page, said in zip(history[1:-1:2], history[2::2], strict=True):  # what to change, not what was changed
            assert said["content"] == render.page_reply(renderer.layout(page["content"]), reference)


def test_the_scripted_designer_is_as_imperfect_as_told(renderer, world):
    """It puts right what it heard only with probability --ask, and wastes a turn or answers too early with --waste."""
    pages = lambda history: [m["content"] for m in history if m["role"] == "assistant"]  # noqa: E731
    for n, task in enumerate(read(world / "data/frontend/train.jsonl")[:3]):
        history, answer = practice_pages.demonstrate_page(renderer.layout, task, 0.9, 0.0, 6, NoEarlyAnswer(n))
        assert answer != task["ground_truth"] and len(pages(history)) == 6
        history, _ = practice_pages.demonstrate_page(renderer.layout, task, 1.0, 1.0, 4, NoEarlyAnswer(n))
        assert len(pages(history)) == 4 and len(set(pages(history)[:3])) == 1, "every turn is wasted"
        history, answer = practice_pages.demonstrate_page(renderer.layout, task, 1.0, 1.0, 4, EarlyAnswer(n))
        assert len(pages(history)) == 2 and answer != task["ground_truth"]


class EarlyAnswer(random.Random):
    """A generator whose probabilities come to pass whenever they can."""

    def random(self):
        return 0.0


class NoEarlyAnswer(random.Random):
    """A generator whose probabilities never come to pass, or always where they are 1."""

    def random(self):
        return 0.999


def test_a_tiny_page_is_about_fifty_tokens(world):
    records = read(world / "data/frontend/demonstrations.jsonl")
    tokenizer = train_policy.tiny_tokenizer([m["content"] for r in records for m in r["dialogue_history"]], 2048)
    assert max(len(tokenizer(r["answer"])["input_ids"]) for r in records) <= 70
    assert all(tokenizer.decode(tokenizer(r["answer"])["input_ids"]) == r["answer"] for r in records)


def test_a_rollout_of_pages_runs_from_the_command_line(world, monkeypatch):
    monkeypatch.chdir(world)
    code, said, error = call(train_policy, "--method", "sft", "--model", "tiny", "--in",
                             "data/frontend/demonstrations.jsonl", "--out", "runs/default/base", "--max-steps", 3)
    assert code == 0, error
    done = run("rollout.py", "--domain", "frontend", "--split", "test", "--max-turns", 3, "--max-tokens", 30,
               "--engine", "transformers", cwd=world)
    assert done.returncode == 0, done.stderr
    records = read(world / "runs/default/test.trajectories.jsonl")
    assert len(records) == 2 and all(r["finish"] in ("answered", "max_turns") for r in records)
    replies = {m["content"] for r in records for m in r["dialogue_history"][1:] if m["role"] == "user"}
    assert (replies <= {render.NO_PAGE, "Your page is empty."}
            or any(" should " in reply or " missing" in reply for reply in replies))
    assert all("Tailwind" in r["system"] and render.TAILWIND_LINK in r["system"] for r in records)


@needs_browser
def test_the_scripted_partner_names_the_largest_differences_and_asks_for_a_page(world):
    task = read(world / "data/frontend/train.jsonl")[0]

    resources = rollout.Resources(types.SimpleNamespace(domain="frontend", max_turns=5))

    async def ask():
        partner = human.Scripted(types.SimpleNamespace(domain="frontend"), resources)
        try:
            dialogues = [[{"role": "assistant", "content": text}] for text in
                         ("What colour should it be?", task["ground_truth"],
                          re.sub(r"bg-[a-z]+(-\d+)?", "bg-indigo-900", task["ground_truth"], count=1), "<html></html>")]
            said = await asyncio.gather(*(partner.reply(task, d, (), None) for d in dialogues))
            return [reply for reply, _ in said]
        finally:
            resources.close()

    replies = asyncio.run(ask())
    assert replies[0] == render.NO_PAGE and replies[1] == render.NO_DIFFERENCE
    assert replies[3] == "Your page is empty."
    assert replies[2] not in replies[:2] and len(replies[2]) <= 1000


def test_a_reference_that_cannot_be_rendered_ends_its_episode_alone():
    def layout(page):
        return None if page == "broken" else {"elements": []}
    resources = types.SimpleNamespace(environment=rollout.ENVIRONMENTS["frontend"],
                                      screen=lambda: types.SimpleNamespace(layout=layout))
    partner = human.Scripted(None, resources)
    with pytest.raises(engines.Refused, match="the reference page could not be rendered"):
        asyncio.run(partner.reply({"ground_truth": "broken"}, [{"content": "<html></html>"}], (), None))


@needs_browser
def test_a_vision_model_gets_both_pictures_and_no_source(world):
    import base64
    import io

    from PIL import Image
    from stub_server import Stub

    page = (f'<html><head><link href="{render.TAILWIND_LINK}" rel="stylesheet"></head>'
            '<body class="bg-red-500"><h1>Mine</h1></body></html>')

    def designer(messages, rng):
        turn = sum(m["role"] == "assistant" for m in messages)
        return ["Which colour?", page, f"Now I know.\nOUTPUT: I WANT TO ANSWER:\n{page}"][turn]

    with Stub(answer=designer) as agent, Stub(answer=lambda messages, rng: "Make it blue. " * 100) as human:
        done = run("rollout.py", "--domain", "frontend", "--in", "data/frontend/test.jsonl", "--out", "seen.jsonl",
                   "--model", agent.url, "--simulator", human.url, "--max-turns", 4, cwd=world)
        assert done.returncode == 0, done.stderr
        requests = human.requests
    records = read(world / "seen.jsonl")
    assert len(records) == len(requests) == 2
    for record in records:
        replies = [m["content"] for m in record["dialogue_history"] if m["role"] == "user"]
        assert replies[1] == render.NO_PAGE and replies[2].startswith("Make it blue.") and replies[2].endswith("blue.") and len(replies[2]) <= 1000
        assert record["answer"] == page and record["finish"] == "answered"
    for request in requests:
        parts = request["messages"][0]["content"]
        pictures = [Image.open(io.BytesIO(base64.b64decode(p["image_url"]["url"].split(",")[1])))
                    for p in parts if p["type"] == "image_url"]
        assert len(pictures) == 2 and all(p.width == 1280 for p in pictures)
        assert (pictures[0].convert("RGB").getpixel((640, 600)) == (239, 68, 68)
                != pictures[1].convert("RGB").getpixel((640, 600)))
        assert "<html" not in " ".join(p.get("text", "") for p in parts)
        assert request["temperature"] == 0


@needs_browser
def test_the_share_of_right_choices_is_counted(world):
    done = run("evaluate.py", "--in", "data/frontend/demonstrations.jsonl", "--out", "choices.jsonl", cwd=world)
    assert done.returncode == 0, done.stderr
    assert re.search(r"choices right +\| \d", done.stdout) and "success, seen" not in done.stdout
    rows = read(world / "choices.jsonl")
    assert len({sum(row["choices"].values()) for row in rows}) > 2 and all(row["reward"] > 0 for row in rows)


@needs_browser
def test_an_evaluation_renders_each_page_once(monkeypatch):
    rendered, measured, submit = [], [], render.Renderer.submit
    monkeypatch.setattr(render.Renderer, "submit", lambda self, page, layout=False: (
        rendered.append(page) or measured.append(layout) or submit(self, page, layout)))
    pages = [f'<html><body><h1 style="color: {colour}">A</h1></body></html>' for colour in ("red", "green", "blue")]
    records = [{"answer": answer, "dialogue_history": [], "task": {"ground_truth": truth}}
               for truth in pages for answer in [*pages, None, *pages]]
    args = types.SimpleNamespace(encoder="layout", workers=2)
    scored = list(evaluate.score_pages(iter(records), args))
    assert sorted(rendered) == sorted(pages) and len(scored) == len(records)
    assert not any(measured), "no layout is measured where a task has no choices"
    for record in scored:
        truth, answer = record["task"]["ground_truth"], record["answer"]
        assert record["reward"] == pytest.approx(1.0) if answer == truth else record["reward"] < 0.9999
        assert record["page"] == ("ok" if answer else "no page")


def test_pages_go_through_critic_candidates_policy_and_picture(world, monkeypatch):

    monkeypatch.chdir(world)
    demonstrations, scored = "data/frontend/demonstrations.jsonl", "runs/smoke/train.scored.jsonl"
    for module, *arguments in (
            (train_policy, "--run-name", "smoke", "--method", "sft", "--model", "tiny", "--in", demonstrations,
             "--max-steps", 1),
            (evaluate, "--in", demonstrations, "--out", scored),
            (train_critic, "--run-name", "smoke", "--pair-rule", "all", "--max-steps", 1),
            (rollout, "--run-name", "smoke", "--domain", "frontend", "--candidates", 4, "--limit", 3,
             "--max-tokens", 20, "--engine", "transformers"),
            (train_critic, "--run-name", "smoke", "--score", "runs/smoke/train.candidates.jsonl"),
            (train_policy, "--run-name", "smoke", "--max-steps", 1),
            (evaluate, "--compare", f"a={scored}", f"b={scored}")):
        code, said, error = call(module, *arguments)
        assert code == 0, (module, error)
    assert (world / "runs/smoke/policy/model.safetensors").exists()
    assert "50.0% [50.0, 50.0]" in said  # a run ties with itself
