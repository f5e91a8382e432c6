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
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

ANSWER_MARK = "I WANT TO ANSWER:"    # begins an answer
COSTS = ("episodes", "sampled_tokens", "simulator_calls", "optimizer_steps", "training_tokens")    # of cost.json


def reward(value):
    """a number from 0.0 to 1.0"""
    return value is None or type(value) in (int, float) and 0 <= value <= 1


# A shape is a type; [shape]; {str: shape}; {"key": shape}, where "key?" may be missing or null and other keys may hold
# anything; or a function that tells whether a value fits, whose docstring says what does.
ID = str | int
TASK = {"task_id?": ID, "domain?": str, "problem_description?": str, "ground_truth?": str, "test_cases?": {str: str},
        "facts?": [{"keywords": [str], "question": str, "reply": str}]}
CANDIDATE = {"output?": str, "output_ids?": [int]}
MESSAGE = {"role": str, "content": str, **CANDIDATE}
DIALOGUE = {"task_id": ID, "task?": TASK, "system?": str, "dialogue_history": [MESSAGE]}
EPISODE = DIALOGUE | {"sample": int, "domain": str, "finish": str, "tests?": {str: str}, "cosine?": {str: int | float}}
TURN = {"task_id?": ID, "sample?": int, "turn?": int, "task?": TASK, "prompt": [MESSAGE]}
EPISODE_KEY, TURN_KEY = ("task_id", "sample"), ("task_id", "sample", "turn")
SCHEMA = {  # kind of record: (what writes it, what names a record, its shape)
    "task": ("generate_tasks.py", ("task_id",), TASK | {"task_id": ID, "problem_description": str,
                                                        "ground_truth": str}),
    "demonstration": ("generate_tasks.py --demonstrations", EPISODE_KEY, DIALOGUE),
    "trajectory": ("rollout.py", EPISODE_KEY, EPISODE | {"task": TASK | {"ground_truth": str}, "answer": str | None}),
    "scored": ("evaluate.py", EPISODE_KEY, EPISODE | {"reward": reward}),
    "candidates": ("rollout.py --candidates 16", TURN_KEY, TURN | {"candidates": [CANDIDATE]}),
    "ranked": ("train_critic.py --score", TURN_KEY, TURN | {"candidates": [CANDIDATE | {"advantage": int | float}]}),
    "pair": ("train_policy.py", TURN_KEY, TURN | {"chosen": [MESSAGE], "rejected": [MESSAGE],
                                                  "chosen_ids?": [int], "rejected_ids?": [int]}),
}
WORDS = {str: "text", int: "a whole number", int | float: "a number", ID: "text or a whole number",
         str | None: "text or null", dict: "an object", list: "a list"}


def schema_error(value, shape, name="it"):
    """What keeps a value from having a shape, as one clause that names the place, or None."""
    kind = type(shape) if isinstance(shape, (dict, list)) else shape
    fits = isinstance(value, kind) if kind in WORDS else kind(value)
    if not fits:
        return f"{name} must be {WORDS.get(kind) or kind.__doc__}, found {json.dumps(value)[:60]}"
    parts = []    # (value, shape, name)
    if kind is list and list(map(type, value)) != shape * len(value):    # [int, int] fits [int] at once
        parts = [(part, shape[0], f"{name}[{n}]") for n, part in enumerate(value)]
    elif kind is dict:
        if str in shape:
            shape = dict.fromkeys(value, shape[str])
        for key, inner in shape.items():
            plain = key.rstrip("?")
            found = value.get(plain)
            if plain == key and key not in value:
                return f"{name} lacks the key {key!r}, found {', '.join(value) or 'none'}"
            if type(found) is not inner and (plain == key or found is not None):
                parts.append((found, inner, f"{name}.{plain}".removeprefix("it.")))
    for part in parts:
        if problem := schema_error(*part):
            return problem
    return None


def read(path, kind, domain=None, unique=False, each=None):
    """Yield the records of a JSON lines file, of a kind in SCHEMA.

    domain: of records that name none; another is refused. unique: no two records may have the same key. each: a
    function of the record whose result is yielded instead. A mistake in a line (also a ValueError, LookupError or
    TypeError that `each` raises) ends the run with one sentence that names file and line.
    """
    path = Path(path)
    maker, key, shape = SCHEMA[kind]
    maker = "evaluate.py" if path.stem.endswith(".scored") else maker
    if not path.is_file():
        die(f"{path}: no such file; run {maker} first, or name another")
    record, lines = None, {}    # lines: where each key stands
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if line.isspace():
                continue
            where = f"{path}, line {number}"
            record = parse_line(line, shape, where, f"{maker} writes such records")
            try:
                if domain and record.setdefault("domain", domain) != domain:
                    raise ValueError(f"found domain {record['domain']!r}, expected {domain!r} (--domain)")
                name = ", ".join(f"{part} {record.get(part)}" for part in key)
                if unique and lines.setdefault(name, number) != number:
                    raise ValueError(f"{name} is there twice, first in line {lines[name]}")
                result = each(record) if each else record
            except KeyError as error:
                die(f"{where}: the key {error} is missing")
            except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
                die(f"{where}: {error}")
            yield result
    if record is None:
        die(f"{path} holds no records; run {maker} first, or name another")


def parse_line(line, shape, where, remedy):
    """The record of this shape that a line holds."""
    try:
        record = json.loads(line.decode())
    except (ValueError, RecursionError):
        record = line[:60].decode(errors="replace")    # a text, which is no object
        if not line.endswith(b"\n"):
            remedy += "; the last line is torn: run it again"
    if problem := schema_error(record, shape):
        die(f"{where}: {problem}; {remedy}")
    return record


class Output:
    """A file of JSON lines that one command writes, however often it is stopped and started again.

    settings: what decides the content; inputs: {flag: path} of files and models that do. Both are recorded beside the
    file (X.settings.json, inputs by their content), and a continued run must agree with them. `done`: the keys of the
    records there. Nothing is made or removed before the first record: a run that cannot start changes nothing.
    """

    def __init__(self, path, settings, inputs, overwrite=False, key=EPISODE_KEY):
        self.path, self.key, self.overwrite = Path(path), key, overwrite
        self.file, self.done = None, set()
        self.beside = self.path.with_suffix(".settings.json")
        if self.path.suffix != ".jsonl":
            die(f"{path}: the name of the output must end in .jsonl")
        check_path(self.path, inputs.values())
        self.settings = {**settings, **{f"content of {flag}": fingerprint(source) for flag, source in inputs.items()}}
        if self.path.exists():
            open_locked(self.path).close()    # nobody else is writing it
            if not overwrite and self.path.stat().st_size:
                check_settings(self.beside, self.settings)
                self.done = {self.key_of(record) for record in self.records()}

    def key_of(self, record):
        return tuple(record[part] for part in self.key)

    def records(self):
        """Yield the records that are there; a torn last line is cut off."""
        shape = dict.fromkeys(self.key, ID)
        with open(self.path, "rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    os.truncate(self.path, self.path.stat().st_size - len(line))
                    break
                yield parse_line(line, shape, f"{self.path}, line {number}", "use --overwrite or another --out")

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
        elif self.file.tell() and not self.done:
            die(f"{self.path}: another process has written it since this one began; start this one again")
        with atomic_write(self.beside) as part:
            part.write_text(json.dumps(self.settings, indent=1) + "\n", encoding="utf-8")

    def sort(self, position):
        """Put the records that are there in the order of position(*key), without those whose position is None."""
        lines = self.path.read_bytes().splitlines(keepends=True)
        places = {line: position(*self.key_of(json.loads(line))) for line in lines}
        kept = sorted((line for line in lines if places[line] is not None), key=places.get)
        if kept != lines:
            with atomic_write(self.path) as part:
                part.write_bytes(b"".join(kept))


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


def check_settings(file, settings):
    """Stop if an output was begun with other settings or inputs, which `file` records."""
    try:
        before = json.loads(Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        die(f"{file}: the settings of the output are missing or damaged; use --overwrite or another --out")
    now = json.loads(json.dumps(settings))    # tuples become lists
    changed = [f"{name} was {before.get(name)!r}, now {now.get(name)!r}" for name in {**now, **before}
               if before.get(name) != now.get(name)]
    if changed:
        die(f"{file}: {'; '.join(changed)}; use --overwrite or another --out")


def fingerprint(path):
    """A digest of a file, or of a model's folder (weights, configuration, template); a hub name or URL is its own."""
    if not Path(path).exists():
        return str(path)
    path, digest = Path(path), hashlib.sha256()
    files = {"": path}
    if path.is_dir():
        files = {file.name: file for file in sorted(path.iterdir()) if file.stem != "settings"
                 and file.suffix in (".safetensors", ".bin", ".json", ".jinja")}
    for name, file in files.items():
        digest.update(f"{name} {file.stat().st_size}".encode())
        with open(file, "rb") as data:
            hashlib.file_digest(data, lambda: digest)    # all of it, about a second for 2 GB
    return digest.hexdigest()[:16]


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


def sign_of_end(path):
    """The file that rollout.py writes beside its output when all is done; a run that was stopped leaves none."""
    return Path(path).with_name(Path(path).stem.removesuffix(".trajectories") + ".rollout.json")


def number(kind=float, least=-math.inf, above=-math.inf, most=math.inf):
    """An argparse type: a finite number of this kind in this range."""
    expected = f"above {above}" if above > least else f"at least {least}"
    if most < math.inf:
        expected += f" and at most {most}"

    def parse(text):
        value = kind(text)
        if least <= value <= most and above < value < math.inf:    # NaN fails every comparison
            return value
        raise argparse.ArgumentTypeError(f"must be {expected}, found {text}")
    parse.__name__ = kind.__name__    # argparse: "invalid int value: 'x'"
    return parse


def first_line(error):
    """What an error says, as one line of at most 300 characters."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


def die(message, code=2):
    """Stop with one sentence on stderr; exit code 2 is a user's mistake. Under torchrun each rank says its own."""
    rank = os.environ.get("RANK", "0")
    prefix = "" if rank == "0" else f"rank {rank}: "
    print(f"{Path(sys.argv[0]).name}: {prefix}{message}", file=sys.stderr, flush=True)
    sys.stdout.flush()
    if "RANK" in os.environ:
        os._exit(code)    # the other ranks may be waiting for this one
    sys.exit(code)
