"""The records that pass between the stages, as JSON lines: what each must have, how they are read and written.

`read` checks each record against SCHEMA, `Output` writes whole lines and continues the file of an earlier run, `die`
ends a run with one sentence. Standard library only: whoever copies a stage copies this file along.
"""
import argparse
import fcntl
import hashlib
import json
import math
import os
import re
import sys
import tempfile
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

ANSWER_MARK, OUTPUT_MARK = "I WANT TO ANSWER:", "OUTPUT:"
COSTS = ("episodes", "sampled_tokens", "simulator_calls", "optimizer_steps", "training_tokens")    # of cost.json

TOKEN_IDS = [(0, 1 << 31)]
MESSAGE = {"role": str, "content": str, "output?": str, "output_ids?": TOKEN_IDS}
CANDIDATE = {"output?": str, "output_ids?": TOKEN_IDS}
NAMES = {"task_id?": str | int, "sample?": int}
TASK = {"task_id?": str | int, "domain?": str, "problem_description?": str, "ground_truth?": str,
        "test_cases?": {str: str}, "facts?": [{"keywords": [str], "question": str, "reply": str}]}
DIALOGUE = NAMES | {"domain?": str, "task?": TASK, "system?": str, "dialogue_history": [MESSAGE], "finish?": str,
                    "tests?": {str: str}, "cosine?": {str: int | float}}
TURN = NAMES | {"turn?": int, "task?": TASK, "prompt": [MESSAGE]}
EPISODE_KEY, TURN_KEY = ("task_id", "sample"), ("task_id", "sample", "turn")
SCHEMA = {  # kind of record: (what writes it, what names a record, its shape)
    "task": ("generate_tasks.py", ("task_id",), TASK | {"problem_description": str, "ground_truth": str}),
    "demonstration": ("generate_tasks.py --demonstrations", EPISODE_KEY, DIALOGUE),
    "trajectory": ("rollout.py", EPISODE_KEY, DIALOGUE | {"task": TASK | {"ground_truth": str}, "answer": str | None}),
    "scored": ("evaluate.py", EPISODE_KEY, DIALOGUE | {"reward": (0.0, 1.0, None)}),
    "candidates": ("rollout.py --candidates 16", TURN_KEY, TURN | {"candidates": [CANDIDATE]}),
    "ranked": ("train_critic.py --score", TURN_KEY, TURN | {"candidates": [CANDIDATE | {"advantage": int | float}]}),
    "pair": ("train_policy.py", TURN_KEY, TURN | {"chosen": [MESSAGE], "rejected": [MESSAGE],
                                                  "chosen_ids?": TOKEN_IDS, "rejected_ids?": TOKEN_IDS}),
}


def die(message, code=2):
    """Stop with one sentence on stderr; exit code 2 is a user's mistake. Under torchrun each rank says its own."""
    rank = os.environ.get("RANK", "0")
    prefix = "" if rank == "0" else f"rank {rank}: "
    print(f"{Path(sys.argv[0]).name}: {prefix}{message}", file=sys.stderr, flush=True)
    sys.stdout.flush()
    if "RANK" in os.environ:
        os._exit(code)    # the other ranks may be waiting for this one
    sys.exit(code)


def first_line(error):
    """What an error says, as one line of at most 300 characters."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


def number(kind=float, least=-math.inf, above=-math.inf, most=math.inf):
    """An argparse type: a finite number of this kind in this range."""
    limits = {"at least": least, "above": above, "at most": most}
    expected = " and ".join(f"{words} {limit}" for words, limit in limits.items() if abs(limit) < math.inf)

    def parse(text):
        value = kind(text)
        if least <= value <= most and above < value < math.inf:    # NaN fails every comparison
            return value
        raise argparse.ArgumentTypeError(f"must be {expected or 'finite'}, found {text}")
    parse.__name__ = "number" if kind is float else "whole number"    # argparse: "invalid whole number value: 'x'"
    return parse


def schema_error(value, shape, name="it"):
    """What keeps a value from having a shape, as one clause that names the place, or None.

    A shape is a type (`str`, `int | None`); a range (low, high), or (low, high, None), which null meets too; [shape], a
    list of such values; {str: shape}, an object of such values; or {"key": shape, ...}, an object with these keys, of
    which "key?" may be missing or null. Other keys may hold anything.
    """
    if isinstance(shape, dict) and isinstance(value, dict):
        if str in shape:
            for key, inner in value.items():
                if problem := schema_error(inner, shape[str], f"{name}[{key!r}]"):
                    return problem
            return None
        for key, inner in shape.items():
            plain = key.rstrip("?")
            found = value.get(plain)
            if type(found) is inner or found is None and plain != key:    # most are
                continue
            if plain not in value:
                return f"{name} lacks the key {plain!r}, found {', '.join(sorted(value)[:12]) or 'none'}"
            if problem := schema_error(found, inner, plain if name == "it" else f"{name}.{plain}"):
                return problem
        return None
    if isinstance(shape, list) and isinstance(value, list):
        if shape is TOKEN_IDS and set(map(type, value)) == {int} and 0 <= min(value) <= max(value) < 1 << 31:
            return None    # quicker than one by one
        for n, inner in enumerate(value):
            if problem := schema_error(inner, shape[0], f"{name}[{n}]"):
                return problem
        return None
    if isinstance(shape, tuple):
        low, high, *other = shape
        if type(value) in (int, type(low)) and low <= value <= high or value in other:
            return None
        expected = f"a {'whole ' if type(low) is int else ''}number from {low} to {high}"
    elif isinstance(shape, (dict, list)):
        expected = "an object" if isinstance(shape, dict) else "a list"
    elif isinstance(value, shape) and not isinstance(value, bool):
        return None
    else:
        expected = {str: "text", int: "a whole number"}.get(shape) or str(shape).replace("str", "text")
    return f"{name} must be {expected}, found {json.dumps(value)[:60]}"


def read(path, kind, domain=None, unique=False, each=None):
    """Yield the records of a JSON lines file, of a kind in SCHEMA, with what released files lack filled in.

    domain: of records that name none; another is refused. unique: no two records may have the same key. each: a
    function of the record whose result is yielded instead. A mistake in a line (also a ValueError, LookupError or
    TypeError that `each` raises) ends the run with one sentence that names file and line.
    """
    path = Path(path)
    maker, key, shape = SCHEMA[kind]
    if path.stem.endswith(".scored"):
        maker = "evaluate.py"
    if not path.is_file():
        die(f"{path}: no such file; run {maker} first, or name another")
    samples, lines, found = Counter(), {}, False
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if line.isspace():
                continue
            try:
                record = parse_line(line, maker)
                if problem := schema_error(record, shape):
                    raise ValueError(f"{problem}; {maker} writes such records")
                fill_in(record, kind, f"{path.stem}-{number:05d}", domain, samples)
                if domain and record["domain"] != domain:
                    raise ValueError(f"found domain {record['domain']!r}, expected {domain!r} (--domain)")
                if unique:
                    name = ", ".join(f"{part} {record.get(part)}" for part in key)
                    if lines.setdefault(name, number) != number:
                        raise ValueError(f"{name} is there twice, first in line {lines[name]}")
                found = True
                if each:
                    record = each(record)
            except KeyError as error:
                die(f"{path}, line {number}: the key {error} is missing")
            except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
                die(f"{path}, line {number}: {error}")
            yield record
    if not found:
        die(f"{path} holds no records; run {maker} first, or name another")


def parse_line(line, maker):
    """The object that a line holds."""
    try:
        record = json.loads(line.decode("utf-8"))
    except RecursionError:
        raise ValueError("nested too deeply for a record") from None
    except ValueError:
        record = None
    if isinstance(record, dict):
        return record
    begin = line[:60].strip().decode("utf-8", "replace")
    torn = "" if line.endswith(b"\n") else f" (the last line is torn: run {maker} again)"
    raise ValueError(f"expected one JSON object, found {begin!r}{torn}")


def fill_in(record, kind, name, domain, samples):
    """Add what records of released files lack: task_id, domain, sample (theirs carry no number), finish."""
    if kind not in ("task", "trajectory", "scored", "demonstration"):
        return
    task = record if kind == "task" else record.get("task") or {}
    if record.get("task_id") is None:
        record["task_id"] = task.get("task_id")
    if record["task_id"] is None:
        content = json.dumps([task.get("problem_description"), task.get("ground_truth")])
        record["task_id"] = name if kind == "task" else f"task-{hashlib.sha256(content.encode()).hexdigest()[:12]}"
    record["domain"] = record.get("domain") or task.get("domain") or domain
    if kind == "task":
        return
    if record.get("sample") is None:
        record["sample"] = samples[record["task_id"]]
        samples[record["task_id"]] += 1
    if record.get("finish") is None:
        turns = [message for message in record["dialogue_history"] if message["role"] == "assistant"]
        if turns and parse_response(turns[-1].get("output") or turns[-1]["content"])[1] is not None:
            record["finish"] = "answered"
        elif "answer" in record and record["answer"] is None:
            record["finish"] = "error: no answer"
        else:
            record["finish"] = "max_turns"


def agent_turns(dialogue):
    """Where the agent speaks."""
    return [i for i, message in enumerate(dialogue) if message["role"] == "assistant"]


def fingerprint(path):
    """A digest of a file, or of a model's folder (weights, configuration, template); a hub name or URL is its own."""
    if not Path(path).exists():
        return str(path)
    path, digest = Path(path), hashlib.sha256()
    files = [path]
    if path.is_dir():
        files = [file for file in sorted(path.iterdir()) if file.stem != "settings"
                 and file.suffix in (".safetensors", ".bin", ".json", ".jinja")]
    for file in files:
        name = file.name if path.is_dir() else ""
        digest.update(f"{name} {file.stat().st_size}".encode())
        with open(file, "rb") as data:
            hashlib.file_digest(data, lambda: digest)    # all of it, about a second for 2 GB
    return digest.hexdigest()[:16]


def check_path(path, inputs=()):
    """Stop unless `path` is a file that can be written, or made, and none of the inputs (links followed)."""
    path = Path(path)
    for source in inputs:
        if path.exists() and Path(source).exists() and path.samefile(source):
            die(f"{path} is the input {source}, which is never written over; name another output")
    if path.exists() and not path.is_file():
        die(f"{path} is no file; name a file to write")
    try:
        if path.exists():
            open(path, "ab").close()
        else:
            folder = next(folder for folder in path.absolute().parents if folder.exists())
            tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        die(f"{path} cannot be written: {error.strerror}")


@contextmanager
def atomic_write(path):
    """A name beside `path` to write to; the file takes the place of `path` once all is written, or goes away."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")    # two processes may be making the same file
    try:
        yield part
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def check_settings(file, settings):
    """Stop if an output was begun with other settings or inputs, which `file` records."""
    try:
        before = dict(json.loads(Path(file).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        die(f"{file}: the settings of the output are missing or damaged; use --overwrite or another --out")
    now = json.loads(json.dumps(settings))
    changed = []
    for name in {**now, **before}:
        if before.get(name) != now.get(name):
            changed.append(f"{name} was {before.get(name)!r}, now {now.get(name)!r}")
    if changed:
        die(f"{file}: {'; '.join(changed)}; use --overwrite or another --out")


def open_locked(path):
    """A file, opened at its end and locked: a second process that wants to write it is refused."""
    file = open(path, "ab", buffering=0)
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)    # unlike flock's, no child of a killed run keeps it
    except (BlockingIOError, PermissionError):
        die(f"{path}: another process is writing it; wait for it, or name another --out")
    except OSError:    # a file system without locks
        pass
    return file


class Output:
    """A file of JSON lines that one command writes, however often it is stopped and started again.

    settings: what decides the content; inputs: {flag: path} of files and models that do. Both are recorded beside the
    file (X.settings.json, inputs by their content), and a continued run must agree with them. `done`: the keys of the
    records there. Nothing is made or removed before the first record: a run that cannot start changes nothing.
    """

    def __init__(self, path, settings, inputs, overwrite=False, key=("task_id", "sample")):
        self.path, self.key, self.overwrite = Path(path), key, overwrite
        self.beside = self.path.with_suffix(".settings.json")
        if self.path.suffix != ".jsonl":
            die(f"{path}: the name of the output must end in .jsonl")
        check_path(self.path, inputs.values())
        check_path(self.beside, inputs.values())
        self.settings = {**settings, **{f"content of {flag}": fingerprint(source) for flag, source in inputs.items()}}
        self.file, self.size, self.done = None, 0, set()    # size: of what is kept
        if self.path.exists():
            open_locked(self.path).close()    # nobody else is writing it
            if not overwrite and self.path.stat().st_size:
                check_settings(self.beside, self.settings)
                self.done = {self.key_of(record) for record in self.records()}
                self.size = self.path.stat().st_size

    def key_of(self, record):
        return tuple(record[part] for part in self.key)

    def records(self):
        """Yield the records that are there; a torn last line is cut off."""
        with open(self.path, "rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    os.truncate(self.path, self.path.stat().st_size - len(line))
                    break
                try:
                    record = json.loads(line)
                    hash(self.key_of(record))
                except (ValueError, LookupError, TypeError, RecursionError):
                    die(f"{self.path}, line {number}: found {line[:60]!r}, expected a record with "
                        f"{', '.join(self.key)}; use --overwrite or another --out")
                yield record

    def write(self, record):
        """Append one record: a whole line, on its way to the disk when this returns."""
        if self.file is None:
            self.begin()
        line = f"{json.dumps(record, ensure_ascii=False)}\n".encode("utf-8", "backslashreplace")    # lone \ud83d stays
        size = self.path.stat().st_size
        try:
            while line:    # a disk that fills up takes a part of it, then raises
                line = line[self.file.write(line):]
        except OSError as error:
            os.truncate(self.path, size)
            die(f"{self.path}: {error.strerror}; all finished records are saved; make room, then continue", 1)
        self.done.add(self.key_of(record))

    def begin(self):
        """Open the file, empty it with --overwrite, and record the settings."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.file = open_locked(self.path)
        if self.overwrite:
            self.file.truncate(0)
        elif self.path.stat().st_size != self.size:
            die(f"{self.path}: another process has written it since this one began; start this one again")
        with atomic_write(self.beside) as part:
            part.write_text(json.dumps(self.settings, indent=1) + "\n", encoding="utf-8")

    def sort(self, position):
        """Sort the finished file by position(*key): records were written in the order in which they were finished."""
        lines = self.path.read_bytes().splitlines(keepends=True)
        self.rewrite(lines, sorted(lines, key=lambda line: position(*self.key_of(json.loads(line)))))

    def drop(self, keys):
        """Take records with these keys out of the file, before the first new one is written."""
        if keys:
            lines = self.path.read_bytes().splitlines(keepends=True)
            self.rewrite(lines, [line for line in lines if self.key_of(json.loads(line)) not in keys])
            self.size, self.done = self.path.stat().st_size, self.done - keys

    def rewrite(self, before, after):
        if after != before:
            with atomic_write(self.path) as part:
                part.write_bytes(b"".join(after))


def sign_of_end(path):
    """The file that rollout.py writes beside its output when all is done; a run that was stopped leaves none."""
    return Path(path).with_name(Path(path).stem.removesuffix(".trajectories") + ".rollout.json")


def parse_response(text):
    """A response as (content: what enters the dialogue, the answer or None).

    A thought ends at the first </think> or at OUTPUT:. The first I WANT TO ANSWER: after it begins the answer, which is
    kept whole. A thought may name that mark: a later line that begins with OUTPUT: ends it too, unless a program stands
    between the two. A thought that was begun with <think> and never ended leaves nothing.
    """
    text = text.split("</think>", 1)[-1]
    if text.lstrip().startswith("<think>"):
        return "", None
    before, mark, answer = text.partition(ANSWER_MARK)
    thought, output, rest = answer.partition(f"\n{OUTPUT_MARK}")
    if output and not re.search(r"```|^\s*(def|import|from|class|<)\b|<html", thought, re.M):
        return parse_response(OUTPUT_MARK + rest)
    content = before.rsplit(OUTPUT_MARK, 1)[-1] + mark + answer
    return content.strip(), answer.strip() if mark else None
