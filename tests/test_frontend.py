"""What the frontend's tasks, demonstrations and rollouts claim, from the command line on."""

import asyncio
import itertools
import json
import math
import random
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
import evaluate  # noqa: E402
import page_tasks  # noqa: E402
import page_words  # noqa: E402
import render  # noqa: E402
import engines  # noqa: E402
import human  # noqa: E402
import rollout  # noqa: E402
from conftest import read_lines  # noqa: E402
from test_render import WITHOUT, needs_browser  # noqa: E402, F401
from test_train import call, train_critic, train_policy  # noqa: E402

PLAIN, KINDS = list(page_tasks.page_kinds("plain")), list(page_tasks.page_kinds())


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


# ---- Tasks


def test_there_are_enough_kinds_and_combinations_of_each_level():
    for level, least in (("plain", 5), ("full", 8)):
        kinds = page_tasks.page_kinds(level).values()
        total = sum(math.prod(len(choice["values"]) for choice in kind["details"]) for kind in kinds)
        assert len(kinds) >= least and total * 0.72 > 10_000 and total * 0.2 > 500


def test_full_pages_have_20_to_40_visible_parts_and_a_purpose(renderer):
    for kind, entry in page_tasks.page_kinds("full").items():
        task = next(page_tasks.draw_tasks("train", "full", 1, kinds=[kind]))
        assert 20 <= len(page_words.Page(renderer.layout(task["ground_truth"])).seen) <= 40, kind
        for request in entry["requests"]:
            assert re.search(r"\b(that|who|where|which|to people|for a|with my)\b", request), request
            assert len(request.split()) >= 11, request


def random_values(kind, rng):
    return [rng.choice(list(choice["values"])) for choice in page_tasks.page_kinds()[kind]["details"]]


@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_choice_is_told_first_and_by_its_own_sentence(renderer, kind):
    choices = page_tasks.page_kinds()[kind]["details"]
    rng = random.Random(kind)
    right = random_values(kind, rng)
    reference = renderer.layout(page_tasks.page_source(kind, right))
    told = {choice["name"]: choice["told"] for choice in choices}
    for i, choice in enumerate(choices):
        other = rng.choice([value for value in choice["values"] if value != right[i]])
        wrong = right[:i] + [other] + right[i + 1:]
        layout = renderer.layout(page_tasks.page_source(kind, wrong))
        said = page_words.compare_pages(layout, reference)
        assert said and page_words.is_about(said[0], choice["told"]), (choice["name"], said)
        assert [said[0].sentence()] == list(page_tasks.differences(kind, wrong, right))
        seen = page_words.choices_right(told, layout, reference)
        assert seen == {name: name != choice["name"] for name in told}, "the metric sees this one and no other"
    assert set(page_words.choices_right(told, reference, reference).values()) == {True}
    assert set(page_words.choices_right(told, None, reference).values()) == {False}
    empty = renderer.layout("<html></html>")
    assert set(page_words.choices_right(told, empty, reference).values()) == {False}


@pytest.mark.parametrize("kind", ["event", "news"])
def test_the_reward_falls_with_the_number_of_wrong_choices(renderer, kind):
    choices, rng, embed = page_tasks.page_kinds()[kind]["details"], random.Random(kind), render.load_encoder("layout")
    totals = [0.0] * (len(choices) + 1)
    for _ in range(5):
        right = random_values(kind, rng)
        versions, order = [list(right)], rng.sample(range(len(choices)), len(choices))
        for i in order:
            versions.append(list(versions[-1]))
            versions[-1][i] = rng.choice([v for v in choices[i]["values"] if v != right[i]])
        pictures = renderer.render_many(page_tasks.page_source(kind, values) for values in versions)
        vectors = [embed(picture) for picture in pictures]
        totals = [total + render.cosine(vector, vectors[0]) / 5 for total, vector in zip(totals, vectors)]
    assert totals[0] > 0.9999 and all(a > b for a, b in zip(totals, totals[1:])) and totals[-1] < 0.75, totals


LETTERS = "text-xl text-2xl text-3xl text-4xl text-5xl text-6xl text-7xl".split()


def designs(text):
    """A page as it is, with plain sizes, and with generous ones: nobody told the agent about padding and letters."""
    def resized(step, scale):
        def letters(match):
            return LETTERS[min(max(LETTERS.index(match[0]) + step, 0), len(LETTERS) - 1)]
        padded = re.sub(r"\bp-(\d+)\b", lambda match: f"p-{scale[int(match[1])]}", text)
        return re.sub(r"\btext-\d?xl\b", letters, padded)
    small = {2: 2, 4: 4, 6: 4, 8: 4, 10: 6, 12: 8, 16: 8, 20: 12, 24: 12}
    large = {2: 4, 4: 6, 6: 8, 8: 12, 10: 12, 12: 16, 16: 24, 20: 24, 24: 32}
    return [text, resized(-1, small), resized(1, large)]


def check_reward(renderer, tasks):
    """(mean Kendall tau of the cosine and the number of wrong choices, least cosine with all choices right)"""
    embed, taus, right = render.load_encoder("layout"), [], []
    for n, task in enumerate(tasks):
        rng = random.Random(n)
        kind, values = page_tasks.kind_and_values(task)
        choices = page_tasks.page_kinds()[kind]["details"]

        def wrong(values, i):
            other = rng.choice([value for value in choices[i]["values"] if value != values[i]])
            return [*values[:i], other, *values[i + 1:]]

        versions = [values]
        for i in rng.sample(range(len(choices)), min(5, len(choices))):
            versions.append(wrong(versions[-1], i))
        words = [i for i, choice in enumerate(choices) if choice["told"][0][0] == "words"]
        versions += [wrong(values, i) for i in words]
        pages = [designs(page_tasks.page_source(kind, version)) for version in versions]
        pictures = renderer.render_many(page for row in pages for page in row)
        vectors = iter([embed(picture) for picture in pictures])
        grid = [[next(vectors) for _ in row] for row in pages]
        reference = grid[0][0]
        for design in range(3):
            cosines = [render.cosine(row[design], reference) for row in grid]
            for other in cosines[len(cosines) - len(words):]:
                assert cosines[0] - other >= 0.01, (kind, design, "a wrong word or price")
            ordered = cosines[:len(cosines) - len(words)]
            signs = [(a > b) - (a < b) for a, b in itertools.combinations(ordered, 2)]
            taus.append(sum(signs) / len(signs))
            right.append(cosines[0])
    return sum(taus) / len(taus), min(right)


@pytest.mark.slow
def test_the_cosine_orders_pages_by_their_wrong_choices(renderer):
    tasks = []
    for level in page_tasks.LEVELS:
        tasks += itertools.islice(page_tasks.draw_tasks("val", level, 0), 3)
    tau, right = check_reward(renderer, tasks)
    assert tau >= 0.9 and right > 0.75, (tau, right)


@pytest.mark.slow
def test_the_cosine_orders_300_pages_by_their_wrong_choices(renderer):
    for level in page_tasks.LEVELS:
        tau, right = check_reward(renderer, itertools.islice(page_tasks.draw_tasks("val", level, 0), 150))
        print(level, "tau", tau, "all choices right, at least", right)
        assert tau >= 0.9 and right > 0.7, (level, tau, right)


@pytest.mark.parametrize("level", page_tasks.LEVELS)
def test_no_page_of_one_split_occurs_in_another(level):
    splits = {}
    for split in ("train", "val", "test"):
        tasks = itertools.islice(page_tasks.draw_tasks(split, level, seed=0), 400)
        splits[split] = {task["ground_truth"] for task in tasks}
        assert len(splits[split]) == 400
    assert not splits["train"] & splits["test"] and not splits["train"] & splits["val"]


def test_pages_are_drawn_until_they_are_used_up_and_never_twice():
    pages = [task["ground_truth"] for task in page_tasks.draw_tasks("test", "plain", seed=1, kinds=["news"])]
    assert len(set(pages)) == len(pages) > 100


def test_the_same_seed_draws_the_same_tasks_and_new_pairs_stay_new():
    draw = lambda split, seed: list(itertools.islice(page_tasks.draw_tasks(split, "plain", seed), 60))  # noqa: E731
    assert draw("train", 3) == draw("train", 3) != draw("train", 4)
    assert {task["half"] for task in draw("train", 3)} == {"seen"}
    assert {task["half"] for task in draw("test", 3)} == {"seen", "new"}
    assert all(task == page_tasks.check_demonstrable(task) for task in draw("test", 3))
    with pytest.raises(ValueError, match="as generate_tasks.py writes them"):
        page_tasks.check_demonstrable(draw("test", 3)[0] | {"ground_truth": "<html></html>"})


# ---- Demonstrations and rollouts


def demonstrations(tasks, count, ask=0.6, waste=0.2, max_turns=6):
    """Records of the scripted designer's dialogues."""
    for n in range(count):
        task = tasks[n % len(tasks)]
        history, answer = page_tasks.demonstrate(task, ask, waste, max_turns, random.Random(n))
        yield {"task_id": task["task_id"], "sample": n // len(tasks), "domain": "frontend", "task": task,
               "dialogue_history": history, "answer": answer, "finish": "answered", "model": "scripted",
               "simulator": "scripted", "seed": 0}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Tasks and demonstrations, in files."""
    folder = tmp_path_factory.mktemp("pages")
    (folder / "data/frontend").mkdir(parents=True)

    def write(name, records):
        lines = [json.dumps(record) + "\n" for record in records]
        (folder / f"data/frontend/{name}.jsonl").write_text("".join(lines))

    tasks = {}
    for split, count in (("train", 8), ("test", 2)):
        drawn = page_tasks.draw_tasks(split, "plain", 0, kinds=["shop", "login"])
        tasks[split] = [task | {"task_id": f"{split}-{n}"} for n, task in enumerate(itertools.islice(drawn, count))]
        write(split, tasks[split])
    write("demonstrations", demonstrations(tasks["train"], 12))
    return folder


def test_a_demonstration_shows_pages_hears_differences_and_answers(world):
    for r in read_lines(world / "data/frontend/demonstrations.jsonl"):
        roles = [m["role"] for m in r["dialogue_history"]]
        assert roles == ["user", "assistant"] * (len(roles) // 2) and len(roles) <= 12
        *shown, last = [m["content"] for m in r["dialogue_history"] if m["role"] == "assistant"]
        assert all(render.extract_page(page) == page for page in shown)
        assert last == f"I WANT TO ANSWER:\n{r['answer']}" and render.extract_page(last) == r["answer"]


def test_the_words_of_a_demonstration_are_those_of_the_rendered_pages(renderer):
    """The designer knows its page without a browser. What it hears is what the human says who sees the pictures."""
    drawn = {kind: next(page_tasks.draw_tasks("train", None, 5, kinds=[kind])) for kind in KINDS}
    equal = turns = 0
    for n, (kind, task) in enumerate(drawn.items()):
        reference = renderer.layout(task["ground_truth"])
        history, _ = page_tasks.demonstrate(task, 0.5, 0.0, 5, NoEarlyAnswer(n))
        for i in range(1, len(history) - 1, 2):
            layout = renderer.layout(history[i]["content"])
            seen = page_words.page_reply(history[:i + 1], history[i]["content"], layout, reference)
            true = [one.sentence() for one in page_words.compare_pages(layout, reference)] or [page_words.NO_DIFFERENCE]
            assert set(history[i + 1]["content"].split("\n")) <= set(true), (kind, history[i + 1]["content"], true)
            equal, turns = equal + (seen == history[i + 1]["content"]), turns + 1
    assert equal >= 0.9 * turns > 25, (equal, turns)


@pytest.mark.parametrize("level", page_tasks.LEVELS)
def test_an_agent_that_does_all_it_is_told_ends_with_the_reference(level):
    for n, task in enumerate(itertools.islice(page_tasks.draw_tasks("train", level, 0), 8)):
        history, answer = page_tasks.demonstrate(task, 1.0, 0.0, 12, NoEarlyAnswer(n))
        assert len(history) // 2 <= 2 + (len(task["details"]) + 1) // 2
        assert answer == task["ground_truth"], history
        assert history[-2]["content"] == page_words.NO_DIFFERENCE


def test_the_scripted_designer_is_as_imperfect_as_told():
    """It puts right what it heard only with probability --ask, and wastes a turn or answers too early with --waste."""
    pages = lambda history: [m["content"] for m in history if m["role"] == "assistant"]  # noqa: E731
    for n, task in enumerate(itertools.islice(page_tasks.draw_tasks("train", "plain", 0), 6)):
        history, answer = page_tasks.demonstrate(task, 0.0, 0.0, 6, NoEarlyAnswer(n))
        assert answer != task["ground_truth"] and len(pages(history)) == 6
        history, _ = page_tasks.demonstrate(task, 1.0, 1.0, 4, NoEarlyAnswer(n))
        assert len(pages(history)) == 4 and len(set(pages(history)[:3])) == 1, "every turn is wasted"
        history, answer = page_tasks.demonstrate(task, 1.0, 1.0, 4, EarlyAnswer(n))
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
    records = read_lines(world / "data/frontend/demonstrations.jsonl")
    tokenizer = train_policy.tiny_tokenizer([m["content"] for r in records for m in r["dialogue_history"]], 2048)
    assert max(len(tokenizer(r["answer"])["input_ids"]) for r in records) <= 70
    assert all(tokenizer.decode(tokenizer(r["answer"])["input_ids"]) == r["answer"] for r in records)


@needs_browser
def test_a_rollout_of_pages_runs_from_the_command_line(world, monkeypatch):
    monkeypatch.chdir(world)
    code, said, error = call(train_policy, "--method", "sft", "--model", "tiny", "--in",
                             "data/frontend/demonstrations.jsonl", "--out", "runs/default/base", "--max-steps", 3)
    assert code == 0, error
    done = run("rollout.py", "--domain", "frontend", "--split", "test", "--max-turns", 3, "--max-tokens", 30,
               "--engine", "transformers", cwd=world)
    assert done.returncode == 0, done.stderr
    records = read_lines(world / "runs/default/test.trajectories.jsonl")
    assert len(records) == 2 and all(r["finish"] in ("answered", "max_turns") for r in records)
    replies = {m["content"] for r in records for m in r["dialogue_history"][1:] if m["role"] == "user"}
    assert (replies <= {page_words.NO_PAGE, page_words.NO_ANSWER, "Your page is empty."}
            or any(" should " in reply or " missing" in reply for reply in replies))
    assert all("Tailwind" in r["system"] and render.TAILWIND_LINK in r["system"] for r in records)


@needs_browser
def test_the_scripted_partner_names_differences_and_answers(world):
    task = read_lines(world / "data/frontend/train.jsonl")[0]

    resources = rollout.Resources(types.SimpleNamespace(domain="frontend", max_turns=5))

    async def ask():
        partner = human.Scripted(types.SimpleNamespace(domain="frontend"), resources)
        try:
            dialogues = [[{"role": "assistant", "content": text}] for text in
                         ("What colour should it be?", task["ground_truth"],
                          re.sub(r"bg-[a-z]+(-\d+)?", "bg-indigo-900", task["ground_truth"], count=1), "<html></html>",
                          "I begin.")]
            said = await asyncio.gather(*(partner.reply(task, d, (), None) for d in dialogues))
            return [reply for reply, _ in said]
        finally:
            resources.close()

    replies = asyncio.run(ask())
    assert replies[0] == "The page's background is white." and replies[1] == page_words.NO_DIFFERENCE
    assert replies[3] == "Your page is empty." and replies[4] == page_words.NO_PAGE
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
    records = read_lines(world / "seen.jsonl")
    assert len(records) == len(requests) == 2
    for record in records:
        replies = [m["content"] for m in record["dialogue_history"] if m["role"] == "user"]
        assert replies[1] == page_words.NO_PAGE and replies[2].startswith("Make it blue.")
        assert replies[2].endswith("Make it blue.") and 900 < len(replies[2]) <= 1000
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
    rows = read_lines(world / "choices.jsonl")
    assert len({sum(row["choices"].values()) for row in rows}) > 2 and all(row["reward"] > 0 for row in rows)
    done = run("evaluate.py", "--in", "data/frontend/demonstrations.jsonl", "--out", "counted.jsonl", "--reward",
               "choices", cwd=world)
    assert done.returncode == 0, done.stderr
    for row, before in zip(read_lines(world / "counted.jsonl"), rows, strict=True):
        assert row["choices"] == before["choices"] and row["cosine"] == before["cosine"]
        assert row["reward"] == sum(row["choices"].values()) / len(row["choices"])
    without = [row | {"task": row["task"] | {"choices": {}}} for row in rows]
    (world / "without.jsonl").write_text("".join(json.dumps(row) + "\n" for row in without))
    done = run("evaluate.py", "--in", "without.jsonl", "--out", "none.jsonl", "--reward", "choices", cwd=world)
    assert done.returncode == 2 and "has no choices" in done.stderr and len(done.stderr.splitlines()) == 1


@needs_browser
def test_an_evaluation_renders_each_page_once(monkeypatch):
    rendered, measured, submit = [], [], render.Renderer.submit
    monkeypatch.setattr(render.Renderer, "submit", lambda self, page, layout=False: (
        rendered.append(page) or measured.append(layout) or submit(self, page, layout)))
    pages = [f'<html><body><h1 style="color: {colour}">A</h1></body></html>' for colour in ("red", "green", "blue")]
    records = [{"answer": answer, "dialogue_history": [], "task": {"ground_truth": truth}}
               for truth in pages for answer in [*pages, None, *pages]]
    args = types.SimpleNamespace(encoder="layout", workers=2, reward_from="cosine")
    scored = list(evaluate.score_pages(iter(records), args))
    assert sorted(rendered) == sorted(pages) and len(scored) == len(records)
    assert all(measured), "the encoder reads the layout"
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
