"""The JSON Lines records that the stages exchange: their schema, and how they are read and written.

`read` checks each record against SCHEMA, `Output` appends whole lines and resumes an earlier run's file, `die` ends a
run with one sentence. Standard library only. If you copy a stage, copy this file too.

Text enters the stages here, and is mended once: a file may be gzipped and may begin with a byte order mark, null is the
same as a missing key, and half of a surrogate pair becomes U+FFFD.
"""
import argparse
import atexit
import fcntl
import gzip
import hashlib
import json
import math
import os
import sys
import tempfile
import zlib
from collections import Counter
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

ANSWER_MARK = "I WANT TO ANSWER:"    # an answer starts with this
OUTPUT_MARK = "OUTPUT:"    # ends a thought
# What today's models write around a thought. A closing mark may stand alone: the chat template has opened the thought.
THOUGHTS = {
    "<think>": "</think>", "<thinking>": "</thinking>", "<thought>": "</thought>", "<thoughts>": "</thoughts>",
    "<reasoning>": "</reasoning>", "<analysis>": "</analysis>", "<scratchpad>": "</scratchpad>",
    "<seed:think>": "</seed:think>", "<mm:think>": "</mm:think>", "<longcat_think>": "</longcat_think>",
    "[THINK]": "[/THINK]", "[thinking]": "[/thinking]", "<|think|>": "<|/think|>", "◁think▷": "◁/think▷",
    "<|begin_of_thought|>": "<|end_of_thought|>", "<|START_THINKING|>": "<|END_THINKING|>",
    "<|inner_prefix|>": "<|inner_suffix|>", "<unused94>": "<unused95>", "<|channel>thought": "<channel|>",
    "<|channel|>analysis": "<|channel|>final<|message|>", "<|channel|>commentary": "<|channel|>final<|message|>",
    "<|start|>assistant<|channel|>analysis": "<|channel|>final<|message|>",
    "analysis<|message|>": "<|channel|>final<|message|>", "assistantanalysis": "assistantfinal"}
COSTS = ("episodes", "sampled_tokens", "simulator_calls", "optimizer_steps", "training_tokens")    # keys of cost.json


def reward(value):
    """a number from 0.0 to 1.0"""
    return value is None or (type(value) in (int, float) and 0 <= value <= 1)


def succeeded(reward):
    """Is a reward 1? Rewards that were computed as means may miss it by a rounding error."""
    return (reward or 0) > 1 - 1e-6


# A shape is a type, [shape], {str: shape}, {"key": shape} or a function that checks a value, whose docstring says what
# it accepts. A key written "key?" may be missing or null. Keys that the shape does not name may hold anything.
ID = str | int
FACT = {"detail": str, "reply": str, "question?": str, "questions?": [str], "term?": str, "aspect?": str,
        "values?": {str: [str]}, "needs?": [str], "implies?": [str]}
TASK = {"task_id?": ID, "domain?": str, "problem_description?": str, "ground_truth?": str, "test_cases?": {str: str},
        "facts?": [FACT]}
CANDIDATE = {"output?": str, "output_ids?": [int], "cut?": bool}    # cut: it ended at the token limit
MESSAGE = {"role": str, "content": str, **CANDIDATE}
NUMBERS = {str: int | float}
DIALOGUE = {"task_id": ID, "task?": TASK, "system?": str, "dialogue_history": [MESSAGE], "cost?": NUMBERS}
EPISODE = DIALOGUE | {"sample?": int, "domain?": str, "finish?": str, "tests?": {str: str}, "cosine?": NUMBERS}
TURN = {"task_id?": ID, "sample?": int, "turn?": int, "task?": TASK, "prompt": [MESSAGE], "cost?": NUMBERS,
        "episode_cost?": NUMBERS, "ranked_by?": {"cost?": NUMBERS, "candidates_cost?": NUMBERS}}
TASK_KEY, EPISODE_KEY, TURN_KEY = ("task_id",), ("task_id", "sample"), ("task_id", "sample", "turn")
SCHEMA = {  # kind of record: (the command that writes it, its key, its shape)
    "task": ("generate_tasks.py", TASK_KEY, TASK | {"task_id": ID, "problem_description": str, "ground_truth": str}),
    "demonstration": ("generate_tasks.py --demonstrations", EPISODE_KEY, DIALOGUE),
    "trajectory": ("rollout.py", EPISODE_KEY, EPISODE | {"task": TASK | {"ground_truth": str}, "answer": str | None}),
    "scored": ("evaluate.py", EPISODE_KEY, EPISODE | {"reward": reward}),
    "candidates": ("rollout.py --candidates 16", TURN_KEY, TURN | {"candidates": [CANDIDATE]}),
    "ranked": ("train_critic.py --score", TURN_KEY, TURN | {"candidates": [CANDIDATE | {"advantage": int | float}]}),
    "pair": ("train_policy.py", TURN_KEY, TURN | {"chosen": [MESSAGE], "rejected": [MESSAGE],
                                                  "chosen_ids?": [int], "rejected_ids?": [int]}),
}
TYPE_NAMES = {str: "text", int: "a whole number", int | float: "a number", ID: "text or a whole number",
              bool: "true or false", str | None: "text or null", dict: "an object", list: "a list"}


def schema_errors(value, shape, name="it"):
    """Yield why a value does not have this shape, as clauses that name the place."""
    kind = type(shape) if isinstance(shape, (dict, list)) else shape
    fits = isinstance(value, kind) if kind in TYPE_NAMES else kind(value)
    if isinstance(value, float) and not math.isfinite(value):    # JSON has no NaN, Python's reader takes it
        fits = False
    if not fits:
        yield f"{name} must be {TYPE_NAMES.get(kind) or kind.__doc__}, found {json.dumps(value)[:60]}"
    elif kind is list and list(map(type, value)) != shape * len(value):    # equal for [1, 2] and [int]
        for n, part in enumerate(value):
            yield from schema_errors(part, shape[0], f"{name}[{n}]")
    elif kind is dict:
        if str in shape:
            shape = dict.fromkeys(value, shape[str])
        if missing := [repr(key) for key in shape if not key.endswith("?") and key not in value]:
            plural = "s" if len(missing) > 1 else ""
            yield f"{name} lacks the key{plural} {', '.join(missing)}, found {', '.join(value) or 'none'}"
        for key, part_shape in shape.items():
            plain_key = key.rstrip("?")
            part = value.get(plain_key)
            optional = part is None and key != plain_key
            if plain_key in value and not optional and type(part) is not part_shape:
                yield from schema_errors(part, part_shape, f"{name}.{plain_key}".removeprefix("it."))


def read(path, kind, domain=None, unique=False, each=None):
    """Yield the records of a JSON Lines file; kind is a key of SCHEMA.

    domain: filled in where a record names none; a record of another domain is an error. A dialogue without `sample` is
    numbered among those of its task. unique: two records with the same key are an error. each: a function of the
    record; its result is yielded instead. An error in a line, or one that `each` raises, ends the run with a sentence
    that names file and line.
    """
    path = Path(path)
    maker, key, shape = SCHEMA[kind]
    maker = "evaluate.py" if path.stem.endswith(".scored") else maker
    if not path.is_file():
        die(f"{path}: no such file; run {maker} first, or name another file")
    record, seen, samples = None, {}, Counter()    # seen: key -> its line
    for where, record in parse_lines(path, shape, f"SCHEMA in records.py names all keys; {maker} writes such records"):
        try:
            if key == EPISODE_KEY:
                record.setdefault("sample", samples[record["task_id"]])
                samples[record["task_id"]] += 1
            if domain and record.setdefault("domain", domain) != domain:
                raise ValueError(f"found domain {record['domain']!r}, expected {domain!r} (--domain)")
            name = ", ".join(f"{part} {record.get(part)}" for part in key)
            if unique and seen.setdefault(name, where) != where:
                raise ValueError(f"{name} appears twice, first in {seen[name].rpartition(', ')[2]}")
            result = each(record) if each else record
        except KeyError as error:
            die(f"{where}: the key {error} is missing")
        except Exception as error:
            die(f"{where}: {error}")
        yield result
    if record is None:
        die(f"{path} holds no records; run {maker} first, or name another file")


def parse_lines(path, shape, remedy):
    """Yield ("PATH, line N", record) for each line that is not blank; the first of another shape ends the run."""
    named = {key.rstrip("?") for key in shape}    # what stands under other keys is the user's own
    for number, line in enumerate(lines_of(path), 1):
        if line.isspace():
            continue
        try:
            record = json.loads(line.decode())
            if isinstance(record, dict):
                for key in named & record.keys():
                    record[key] = mended(record[key])
                    if record[key] is None and key not in shape:    # optional
                        del record[key]
        except Exception:    # not UTF-8, not JSON, too deep
            record = line[:60].decode(errors="replace")    # a string never has the right shape
            if not line.endswith(b"\n"):
                remedy += "; the last line is incomplete: run it again"
        where = f"{path}, line {number}"
        if problems := list(islice(schema_errors(record, shape), 5)):
            die(f"{where}: {'; '.join(problems)}; {remedy}")
        yield where, record


def lines_of(path):
    """Yield the lines of a file, which may be gzipped and may begin with a byte order mark."""
    with open(path, "rb") as file:
        opener = gzip.open if file.read(2) == b"\x1f\x8b" else open
    try:
        with opener(path, "rb") as file:
            yield from (line.removeprefix(b"\xef\xbb\xbf") if n == 0 else line for n, line in enumerate(file))
    except (EOFError, zlib.error) as error:
        die(f"{path}: the gzip file is damaged: {error}")


def mended(value):
    """A part of a record without nulls in objects and without halves of surrogate pairs."""
    if isinstance(value, dict):
        return {key: mended(part) for key, part in value.items() if part is not None}
    if isinstance(value, list) and value and not isinstance(value[0], int):    # token ids are many
        return list(map(mended, value))
    if isinstance(value, str) and not value.isascii():
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return value


class Output:
    """The JSON Lines file that a command writes; the same command, run again, resumes it.

    settings and inputs ({flag: path}) decide the content. They are saved in X.settings.json, inputs as digests, and a
    resumed run must match them. `done`: the keys already written. No file is created or emptied before the first write.
    """

    def __init__(self, path, settings, inputs, overwrite=False, key=EPISODE_KEY):
        self.path, self.key, self.overwrite = Path(path), key, overwrite
        self.file, self.done, self.size = None, set(), 0    # size: of the file when `done` was read
        self.beside = self.path.with_suffix(".settings.json")
        if self.path.suffix != ".jsonl":
            die(f"{path}: the name of the output must end in .jsonl")
        check_path(self.path, inputs.values())
        self.settings = {**settings, **{f"content of {flag}": fingerprint(source) for flag, source in inputs.items()}}
        if self.path.exists() and self.path.stat().st_size and not overwrite:
            check_settings(self.beside, self.settings)
            content = self.path.read_bytes()
            if not content.endswith(b"\n"):
                os.truncate(self.path, content.rfind(b"\n") + 1)    # cuts an incomplete last line off
            self.size = self.path.stat().st_size
            self.done = {self.key_of(record) for record in self.records()}

    def key_of(self, record):
        return tuple(record[part] for part in self.key)

    def records(self):
        """Yield the records already written."""
        shape = dict.fromkeys(self.key, ID)
        for _, record in parse_lines(self.path, shape, "use --overwrite or another --out"):
            yield record

    def write(self, record):
        """Append one record as a whole line, unbuffered."""
        if self.file is None:
            self.begin()
        line = f"{json.dumps(record, ensure_ascii=False)}\n".encode("utf-8", "backslashreplace")    # keeps \ud83d
        size = self.path.stat().st_size
        try:
            while line:    # a full disk takes part of the line, then raises
                line = line[self.file.write(line):]
        except OSError as error:
            os.truncate(self.path, size)
            die(f"{self.path}: {error.strerror}; all finished records are saved; make room, then resume", 1)
        self.done.add(self.key_of(record))

    def begin(self):
        """Open the file, empty it if asked to overwrite, and save the settings."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.file = open_locked(self.path)
        if self.overwrite:
            self.file.truncate(0)
        elif self.file.tell() != self.size:
            die(f"{self.path}: another process has written to it since this one started; run this one again")
        write_json(self.beside, self.settings)

    def sort(self, position):
        """Sort the records by position(*key), and drop those whose position is None."""
        lines = self.path.read_bytes().splitlines(keepends=True)
        positions = {line: position(*self.key_of(json.loads(line))) for line in lines}
        kept = sorted((line for line in lines if positions[line] is not None), key=positions.get)
        if kept != lines:
            with atomic_write(self.path) as part:
                part.write_bytes(b"".join(kept))
            self.size = self.path.stat().st_size


def check_path(path, inputs=()):
    """Stop if `path` is one of the inputs (links followed), is locked, or cannot be written or created."""
    path = Path(path)
    for source in inputs:
        if path.exists() and Path(source).exists() and path.samefile(source):
            die(f"{path} is the input {source}, which is never overwritten; name another output")
    try:
        if path.exists():
            open_locked(path).close()
        else:
            folder = next(folder for folder in path.absolute().parents if folder.exists())
            tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        die(f"{path} cannot be written: {error.strerror}")


def check_settings(file, settings):
    """Stop if these settings differ from those in `file`, with which the output was started."""
    try:
        recorded = {**json.loads(Path(file).read_text(encoding="utf-8"))}
    except (OSError, ValueError, TypeError):    # TypeError: not an object
        die(f"{file}: the settings of the output are missing or damaged; use --overwrite or another --out")
    current = json.loads(json.dumps(settings))    # tuples become lists
    changed = [f"{name} was {recorded.get(name)!r}, now {current.get(name)!r}" for name in {**current, **recorded}
               if recorded.get(name) != current.get(name)]
    if changed:
        die(f"{file}: {'; '.join(changed)}; use --overwrite or another --out")


def fingerprint(path):
    """A digest of a file or a model folder (weights, configuration, template); a hub name or URL is returned as is."""
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
            hashlib.file_digest(data, lambda: digest)    # reads all of it: about a second for 2 GB
    return digest.hexdigest()[:16]


@contextmanager
def atomic_write(path):
    """Yield a temporary path to write to. It replaces `path` when the block succeeds, and is removed if it fails."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")    # two processes may write the same file
    try:
        yield part
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def write_json(path, content):
    """Write settings or results to a small file of their own."""
    with atomic_write(path) as part:
        part.write_text(json.dumps(content, indent=1) + "\n")


def open_locked(path):
    """Open a file for appending and lock it; stop if another process has locked it."""
    file = open(path, "ab", buffering=0)
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)    # unlike flock, not kept by a killed run's children
    except (BlockingIOError, PermissionError):
        die(f"{path}: another process is writing it; wait until it ends, or name another --out")
    except OSError:    # a file system without locks
        pass
    return file


def hashed(*what):
    """A number from anything that JSON can write, the same in every process."""
    return int.from_bytes(hashlib.sha256(json.dumps(what).encode()).digest()[:8], "big")


def split_of(*what):
    """Which split something belongs to: 72% train, 8% val, 20% test, by its hash alone (no seed)."""
    percent = hashed(*what) % 100
    if percent < 72:
        return "train"
    return "val" if percent < 80 else "test"


def sign_of_end(path):
    """The file that rollout.py writes beside its output when it has finished; an interrupted run leaves none."""
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


def refuse_idle(flags, mode):
    """Exit if some of these flags stand on the command line, because this mode (such as "with --score") ignores them.

    The script's parser must have allow_abbrev=False, so that a flag has one name.
    """
    given = {word.partition("=")[0] for word in sys.argv[1:]}
    idle = sorted(given & {*flags})
    if len(idle) == 1:
        die(f"{idle[0]} does nothing {mode}; leave it out")
    if idle:
        die(f"{', '.join(idle)} do nothing {mode}; leave them out")


def run_script(main):
    """Run a script's main() and end the process. Ctrl-C, and a file that cannot be used, end it with one sentence.

    Threads that still work are not waited for. Nor is the interpreter taken down, which would end a finished run with
    "terminate called" where gloo's threads still hold a tensor (pytorch/pytorch#190489).
    """
    code = 0
    try:
        try:
            main()
        except KeyboardInterrupt:
            die("stopped; the same command without --overwrite resumes", 130)
        except OSError as error:
            die(f"{error.filename or 'a file'}: {error.strerror or error}")
    except SystemExit as stop:
        code = stop.code or 0
    atexit._run_exitfuncs()    # os._exit would skip them
    sys.stdout.flush()
    os._exit(code)


def first_line(error):
    """The first line of an error's message, at most 300 characters."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


def die(message, code=2):
    """Print one sentence to stderr and exit; code 2 means a user's mistake. Under torchrun each rank prints its own."""
    rank = os.environ.get("RANK")
    prefix = f"rank {rank}: " if rank else ""
    print(f"{Path(sys.argv[0]).name}: {prefix}{message}", file=sys.stderr, flush=True)
    sys.stdout.flush()
    if rank:
        os._exit(code)    # the other ranks may be waiting for this one
    sys.exit(code)
