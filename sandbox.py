"""Run untrusted Python programs and compare their results, without trusting anything that they report.

    with Sandbox(workers=2) as box:
        box.run("def f(x): return x + 1", ["f(1)", "f('a')"])    # [Outcome("ok", b"n2;"), Outcome("error: TypeError")]
        box.score(task, code)                                    # {"1": "passed", "2": "wrong", "3": "timeout", ...}
        for key, statuses in box.score_many(items): ...          # a stream of (key, task, code), on all workers

    python tests/hostile_programs.py                             # prints the layers, runs tests/hostile/*.py

How it works
    parent      (your process) hands out jobs, enforces the time limits and compares bytes. Expected results stay here.
    zygote      a clean interpreter (-s -S -P, empty environment), one per worker and hash seed (0 or 1), others with
                numpy if a program imports it. It imports common standard modules, isolates itself, and forks one child
                per program. It never reads a program.
    child       reads its job from a descriptor that the zygote passes on, gives up most system calls, and evaluates
                each call in a fresh namespace of the program. It writes each result at once, as canonical bytes.

Canonical bytes. Two results are equal if their canonical bytes are. On plain data that agrees with Python's ==:
1 == 1.0 == True == Fraction(1), the order of sets and dicts does not count, [1] != (1,). The bytes come from the
built-in part of an object, never from its own methods: an int subclass counts as its int, whatever its __eq__ says.
Departures from ==: NaN equals itself; OrderedDicts and Counters compare as dicts (a count of 0 counts). numpy's numbers
count as Python's, and its arrays equal arrays of the same shape. Objects of unknown classes, generators, functions,
paths, and results beyond 1 MB or 200 levels are "not comparable", and so never pass.

Statuses    passed, wrong, error: TypeError, timeout, killed: memory, killed: exit, killed: SIGSEGV, not comparable,
            refused (not a string, too large, forbidden in mode "released", or its zygote died twice), and
            "reference ..." if the reference itself gave no result, or None for every call (then any stub would
            pass). After a call that kills the child, the remaining calls run in a new child, within the program's time.
Modes       "module": the program is an ordinary module, as its author intended. A call may use what the reference
            imports, and the program numpy, if installed. "released": the raw answer is judged as by the evaluator
            released with ColBench; see released_program(), run_child() and verdict(). What still differs: objects with
            their own __eq__, functions, classes of the program and paths are not comparable; [nan] equals itself; more
            than 256 MB, threads and files fail; an alarm cannot be swallowed; the evaluator's names are unknown.

Isolation. Each layer is tried at the start. `box.layers`, which scored records keep, says which ones are on:
    namespaces  user, network, pid, mount, ipc, uts; the root contains only the interpreter's library, read-only
    uid         nobody, if started as root (but see leave_privileges); no capabilities, no_new_privs
    Landlock    only that library is readable, nothing is writable, no TCP, no signals to outside
    seccomp     an allow-list. No sockets, processes, threads, exec, kill, ptrace, io_uring, memfd; opens are read-only;
                a system call of a foreign architecture kills the child. Everything else fails with EPERM
    limits      address space, CPU, file size, open files, core; other descriptors closed, standard streams on /dev/null
    time        the parent waits, then has the child killed (SIGKILL); nothing is raised inside the program
Without user namespaces or Landlock, the other layers still apply. The sandbox does not start without seccomp. Unless it
is started as root, it also needs user namespaces or Landlock, at least one of them. unsafe=True (evaluate.py --unsafe)
lifts both rules. Linux only, on x86-64 or arm64 (whose filter is checked against the kernel's table, but has not been
run).

What is shared. A zygote's children run one after another in the same namespaces, where nothing is writable. The calls
of one program share a process: if call 1 sets math.pi = 3, call 2 sees it.

What it does not stop: kernel bugs; timing and cache side channels; use of CPU, and of memory up to the limits, which
do not count page tables (a program can make the kernel hold twice as much on top); a reference that reads the clock.
If the root is not pivoted, a program can find out which paths exist; without Landlock too, it can read whatever user
nobody can read. Programs that need threads, subprocesses, sockets (asyncio.run makes one), or shared libraries that the
zygote has not loaded, fail with an error that says so.
"""
import builtins
import ctypes
import datetime
import decimal
import fractions
import functools
import gc
import importlib.util
import json
import math
import os
import random
import re
import resource
import select
import signal
import socket
import struct
import sys
import types
from collections import Counter, OrderedDict, deque
from contextlib import ExitStack, suppress
from itertools import islice
from typing import NamedTuple

IS_ZYGOTE = __name__ == "__main__" and sys.argv[1:2] == ["--zygote"]
if not IS_ZYGOTE:    # a small zygote forks faster
    import queue
    import subprocess
    import threading
    import time
    from concurrent.futures import ThreadPoolExecutor

    from records import die

CALL_TIMEOUT, PROGRAM_TIMEOUT = 1.0, 5.0    # seconds; tasks are checked and answers scored with the same limits
MAX_RESULT = 1 << 20     # bytes of one canonical result; larger ones are "not comparable"
MAX_PROGRAM = 1 << 20    # characters of one program with its calls; larger ones are "refused"
MAX_DEPTH = 200          # levels of one result; deeper and self-referential ones are "not comparable"
KEPT_REFERENCES = 20_000    # tasks whose reference results stay cached
NOBODY = 65534           # user and group of the children if the parent is root
START_NOTICE = 20        # seconds of waiting for a start, after which a line says so, again and again
EXIT_MEMORY = 77         # exit code of a child that ran out of memory
FRAME = struct.Struct("!cI")    # header of what a child writes: kind of frame, length of the payload
LOADED, VALUE, ERROR, INCOMPARABLE = b"L", b"V", b"E", b"N"
PRELOADED = """abc base64 bisect calendar cmath copy csv dataclasses enum functools hashlib heapq itertools numbers
    operator re statistics string textwrap time typing unicodedata urllib.parse uuid""".split()    # each slows forks
NUMPY = "numpy numpy.fft numpy.linalg numpy.ma numpy.polynomial numpy.random".split()    # with its lazy parts
RELEASED_REFERENCE_TIMEOUT = 60    # seconds for one of its calls; the released evaluator lets it run for ever
IMPORT = re.compile(r"^(?:import|from) (?:[^(\n]*\([^)]*\)|(?:.*\\\n)*.*)", re.MULTILINE)
FORBIDDEN = ("import os", "from os", "import sys", "from sys", "sudo", "transformers", "exit(", "quit(", "argparse")


# ---- The public interface

class Outcome(NamedTuple):
    status: str                     # "ok", "error: TypeError", "timeout", "not comparable", "refused", ...
    value: bytes | None = None      # the canonical bytes, if the status is "ok"


def imports_numpy(*programs):
    return any(re.search(r"^\s*(import|from) numpy\b", str(program), re.MULTILINE) for program in programs)


def released_program(answer):
    """The program that the released evaluator runs for a raw answer; None if the answer contains a FORBIDDEN string.

    It is the first ```python block, else the first fenced block, else the whole answer.
    """
    if not isinstance(answer, str) or any(text in answer for text in FORBIDDEN):
        return None
    for fence in ("```python", "```"):
        if fence in answer:
            return answer.split(fence)[1].split("```")[0]
    return answer


def verdict(reference, candidate, mode):
    """The status of one test, from the Outcomes of the reference and of the candidate."""
    if reference.status != "ok":
        return f"reference {reference.status}"
    if candidate.status != "ok":
        return candidate.status
    if mode == "module":
        return "passed" if candidate.value == reference.value else "wrong"
    (theirs, their_order), (ours, our_order) = map(with_order, (reference.value, candidate.value))
    equal = their_order == our_order or theirs == ours and (theirs == their_order or ours == our_order)
    # None means "no result" to the released evaluator, and NaN is not equal to itself.
    return "passed" if equal and ours not in (NONE, NAN) else "wrong"


def with_order(value):
    """What a child writes in mode "released": (canonical bytes, those in which an OrderedDict is no dict)."""
    end = 4 + int.from_bytes(value[:4], "big")
    return value[4:end], value[end:] or value[4:end]


class Sandbox(ExitStack):
    """Runs programs in `workers` zygotes. Threads may share it. A program's failure is a status, never an exception.

    memory_mb         memory for a program, on top of the interpreter's own
    call_timeout      seconds for one call, including the execution of the program before it
    program_timeout   seconds for all calls of one program (mode "released": call_timeout for each call, plus 1)
                      (a program that got less than half of a core is run again, with 4 and then 16 times both limits)
    unsafe            True: start even if a necessary layer is missing
    without           layers to leave out, of "namespaces", "landlock", "seccomp"; for tests and benchmarks
    """

    def __init__(self, workers=2, memory_mb=256, call_timeout=CALL_TIMEOUT, program_timeout=PROGRAM_TIMEOUT,
                 unsafe=False, without=()):
        if sys.platform != "linux":
            die("the sandbox needs Linux on x86_64 or aarch64; run it there, or in a virtual machine")
        super().__init__()
        self.workers, self.call_timeout, self.program_timeout = workers, call_timeout, program_timeout
        self.unsafe, self.layers = unsafe, None
        options = {"memory_bytes": memory_mb << 20, "without": list(without)}
        # (program, calls, mode) of a reference -> a lock, and its outcomes (empty until it has run).
        self.references = functools.lru_cache(KEPT_REFERENCES)(lambda *reference: (threading.Lock(), []))
        spec = importlib.util.find_spec("numpy")
        self.numpy = spec and spec.origin and os.path.dirname(os.path.dirname(spec.origin))    # its folder
        self.free = {(seed, numpy): queue.SimpleQueue() for numpy in {None: 0, self.numpy: 0} for seed in (0, 1)}
        self.zygotes = [Zygote({**options, "numpy": kind[1]}, kind) for kind in self.free for _ in range(workers)]
        for zygote in self.zygotes:
            self.free[zygote.kind].put(zygote)
            self.callback(zygote.close)    # at the end of a `with`, or by close()
        self._start(self.zygotes[0])    # the others start when they are used

    def _start(self, zygote):
        """Start a zygote, or exit. All zygotes must have the same layers, because a record names only one set."""
        try:
            layers = zygote.start()
        except OSError as error:
            die(f"the sandbox could not start: {error}")
        if not layers["seccomp"] and not self.unsafe:
            die("seccomp, which filters system calls, is not available here; unsafe=True (evaluate.py --unsafe) runs "
                "without it")
        if layers["root"] == "shared" and not layers["landlock"] and layers["uid"] == os.getuid() and not self.unsafe:
            die("neither a private root nor Landlock is available here, so programs could read your files, including "
                "expected results; start it as root, or run it anyway with unsafe=True (evaluate.py --unsafe)")
        self.layers = self.layers or layers
        if layers != self.layers:
            die(f"a sandbox worker has the layers {layers}, but the first one has {self.layers}")

    def run(self, program, calls, seed=0, mode="module", imports=(), numpy=False, call_timeout=None):
        """Evaluate each call (an expression) in a fresh namespace of the program; returns one Outcome per call.

        seed: 0 or 1, for `random` and for the interpreter's hashes, which decide the order of a set; mode: see the top.
        imports: statements for the calls alone; numpy: may it be imported? call_timeout: the sandbox's, if None.
        """
        if mode not in ("module", "released"):
            raise ValueError(f"mode must be module or released, found {mode!r}")
        refused = [Outcome("refused")] * len(calls)
        if not isinstance(program, str) or len(program) + sum(map(len, calls)) > MAX_PROGRAM:
            return refused
        call_timeout = call_timeout or self.call_timeout
        program_timeout = call_timeout * len(calls) + 1 if mode == "released" else self.program_timeout
        job = {"program": program, "seed": seed, "mode": mode, "imports": imports, "call_timeout": call_timeout,
               "program_timeout": program_timeout}
        free = self.free[seed, self.numpy if numpy else None]
        zygote = free.get()
        try:
            for _ in range(2):    # again if the zygote dies
                if not zygote.process:
                    self._start(zygote)
                with suppress(OSError):
                    for patience in (1, 4, 16):
                        outcomes, starved = zygote.run(job, calls, patience)
                        if not starved:
                            break
                    return outcomes
                zygote.close()
            return refused
        except BaseException:
            zygote.close()    # after Ctrl-C, say, the zygote's next answer would belong to this job
            raise
        finally:
            free.put(zygote)

    def score(self, task, code, mode="module"):
        """{label: status} of a candidate on a task's tests. code: its program, or in mode "released" the raw answer."""
        source, calls = task["ground_truth"], tuple(task["test_cases"].values())
        lock, references = self.references(source, calls, mode)
        with lock:    # the reference runs once per task; other threads wait here for its outcomes
            if not references:
                patience = RELEASED_REFERENCE_TIMEOUT if mode == "released" else None
                references += self.run(source, calls, mode=mode, numpy=imports_numpy(source), call_timeout=patience)
                if all(outcome.value == NONE for outcome in references):
                    references[:] = [Outcome("returns None")] * len(calls)
        program, imports = released_program(code), []
        if mode == "module":    # a call such as f(date(2020, 1, 2)) needs the reference's import
            program, words = code, set(re.findall(r"\w+", " ".join(calls))) | {"*"}
            imports = [line for line in IMPORT.findall(source) if words & set(re.findall(r"\w+|\*", line))]
        outcomes = self.run(program, calls, mode=mode, imports=imports, numpy=imports_numpy(source, program))
        return {label: verdict(reference, candidate, mode)
                for label, reference, candidate in zip(task["test_cases"], references, outcomes)}

    def score_many(self, items, mode="module"):
        """Yield (key, statuses) for each (key, task, code) of an iterable, in order, reading only a little ahead."""
        threads = ThreadPoolExecutor(self.workers)
        futures = ((key, threads.submit(self.score, task, code, mode)) for key, task, code in items)
        try:
            ahead = deque(islice(futures, 64 * self.workers))
            while ahead:
                key, future = ahead.popleft()
                ahead.extend(islice(futures, 1))
                yield key, future.result()
        finally:
            threads.shutdown(cancel_futures=True)

    def check_reference(self, task):
        """Run the reference twice; returns {label: "ok" | "differs" | "none" | "error: ..." | ...}.

        The two runs have different seeds, so results differ if they depend on chance, on the order of a
        set or on a precise clock. The date is the same in both.
        """
        program, calls = task["ground_truth"], list(task["test_cases"].values())
        first, second = (self.run(program, calls, seed, numpy=imports_numpy(program)) for seed in (0, 1))
        statuses = {}
        for label, one, two in zip(task["test_cases"], first, second):
            status = "none" if one.value == NONE else one.status
            statuses[label] = status if one == two else "differs"
        return statuses


# ---- Canonical bytes

class NotComparable(Exception):
    """A result that has no canonical bytes."""


def kind_of(o):
    """The first of an object's classes that is in KINDS, or None."""
    return next((base for base in MRO(type(o)) if id(base) in KINDS), None)


def canonical(value, ordered=False):
    """The canonical bytes of a result. ordered: OrderedDicts keep their order, and Counters lose counts of 0.

    Nothing here runs code of the object's class. Its kind is found by the identity of the classes in the real __mro__.
    Its contents are read through the built-in class: list.__iter__(o), not iter(o).
    """
    room = MAX_RESULT    # bytes left. Bounds the work, even if a structure contains one part many times

    def fits(size):
        if size > room:
            raise NotComparable("too large")

    def take(size):
        nonlocal room
        fits(size)
        room -= size

    def text(tag, data):    # the length keeps the bytes of different results different
        take(len(data) + 8)
        return b"%s%x:%s" % (tag, len(data), data)

    def ratio(top, bottom):    # exact. Hexadecimal, because decimal digits take quadratic time
        take((top.bit_length() + bottom.bit_length()) // 4 + 6)
        return b"n%x;" % top if bottom == 1 else b"n%x/%x;" % (top, bottom)

    def encode(o, depth):
        if depth > MAX_DEPTH:
            raise NotComparable("too deep")
        kind = kind_of(o)
        if kind in (int, float, decimal.Decimal):    # bool is an int
            if kind is decimal.Decimal and abs(decimal.Decimal.adjusted(o)) > 10_000:
                raise NotComparable("too large")
            try:
                return ratio(*kind.as_integer_ratio(o))
            except (OverflowError, ValueError):
                return text(b"f", b"%f" % kind.__float__(o))    # nan, inf or -inf; a signalling NaN raises
        if kind is str:
            fits(str.__len__(o))
            return text(b"s", str.__str__(o).encode("utf-8", "surrogatepass"))
        if kind is NONE_TYPE:
            return text(b"N", b"")
        if kind in CONTAINERS:
            fits(kind.__len__(o))
            take(8)
            tag = CONTAINERS[kind]
            if kind is dict:
                entries = dict.items(o)
                if ordered and OrderedDict in MRO(type(o)):
                    entries, tag = OrderedDict.items(o), b"O"
                elif ordered and Counter in MRO(type(o)):
                    entries, tag = [(key, count) for key, count in entries if count != 0], b"C"
                parts = [encode(key, depth + 1) + encode(entry, depth + 1) for key, entry in entries]
            else:
                parts = [encode(part, depth + 1) for part in kind.__iter__(o)]
            if tag in b"SdC":    # order does not count
                parts.sort()
            return b"%s%x[%s]" % (tag, len(parts), b"".join(parts))
        if kind in (bytes, bytearray):
            fits(kind.__len__(o))
            return text(b"b", bytes(kind.__getitem__(o, slice(None))))
        if kind is complex:
            real, imaginary = parts = complex.__getnewargs__(o)
            return encode(real, depth) if imaginary == 0 else b"c" + encode(parts, depth)
        if kind is fractions.Fraction:
            top, bottom = FRACTION_TOP(o), FRACTION_BOTTOM(o)    # plain slots, which a program can fill with anything
            if type(top) is not int or type(bottom) is not int:
                raise NotComparable("a Fraction whose parts are not whole numbers")
            return ratio(top, bottom)
        if kind in (datetime.datetime, datetime.date, datetime.time):
            zone = None if kind is datetime.date else kind.tzinfo.__get__(o)
            if zone is not None:
                if type(zone) is not datetime.timezone or type(o) is not datetime.datetime:
                    raise NotComparable("a time zone with its own methods, or a time of day with a zone")
                o = o.astimezone(datetime.timezone.utc)
            return text(b"D", kind.isoformat(o).encode())    # the three look different
        if kind is type and vars(builtins).get(TYPE_NAME(o)) is o:    # int, but not a class of the program
            return text(b"T", TYPE_NAME(o).encode())
        if kind in REDUCED:
            tag, reduce = REDUCED[kind]
            return tag + encode(reduce(o), depth + 1)
        raise NotComparable("an object of an unknown class")

    return encode(value, 0)


MRO = type.__dict__["__mro__"].__get__
TYPE_NAME = type.__dict__["__name__"].__get__
FRACTION_TOP, FRACTION_BOTTOM = fractions.Fraction._numerator.__get__, fractions.Fraction._denominator.__get__
NONE_TYPE = type(None)
CONTAINERS = {list: b"l", tuple: b"t", set: b"S", frozenset: b"S", deque: b"q", dict: b"d",
              type({}.keys()): b"S", type({}.items()): b"S"}
REDUCED = {    # kind -> (tag, a function that gives a plainer value); nothing can inherit from most of these
    range: (b"r", lambda o: (*o[:2], *o[-1:])),    # equal if their numbers are: the first two and the last
    datetime.timedelta: (b"I", datetime.timedelta.__str__),
    memoryview: (b"", memoryview.tobytes),
    re.Pattern: (b"P", lambda o: (o.pattern, o.flags)),
    type(...): (b"E", str),
}
KINDS = set(map(id, (    # by identity: a class may have an == of its own
    int, str, float, NONE_TYPE, *CONTAINERS, *REDUCED, bytes, bytearray, complex, fractions.Fraction, decimal.Decimal,
    datetime.datetime, datetime.date, datetime.time, type)))
NONE, NAN = canonical(None), canonical(math.nan)


# ---- The parent's end of a zygote

class Zygote:
    """The parent's end of one zygote. Used by one thread at a time, and restarted after it dies."""

    def __init__(self, options, kind):
        self.options, self.kind, self.process = options, kind, None    # kind: (seed, the folder of numpy or None)

    def start(self):
        """Start the process, wait until it is ready, and return its layers."""
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        python = sys._base_executable    # not the virtual environment's
        with theirs:
            self.process = subprocess.Popen(
                [python, "-s", "-S", "-P", "-B", os.path.abspath(__file__), "--zygote", json.dumps(self.options)],
                env={"PYTHONHASHSEED": str(self.kind[0]), "OPENBLAS_NUM_THREADS": "1"}, cwd="/",
                stdin=theirs, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        began = time.monotonic()
        while not readable([self.control], START_NOTICE * 1000):
            print(f"the sandbox has been starting for {time.monotonic() - began:.0f} s: this machine is busy",
                  file=sys.stderr, flush=True)
        layers = self.receive()
        if "error" in layers:
            raise OSError(layers["error"])
        return layers

    def receive(self):
        message = self.control.recv(1 << 16)
        if not message:
            raise ConnectionError("its process ended")
        return json.loads(message)

    def close(self):
        process, self.process = self.process, None    # after Ctrl-C another thread may be closing it too
        if process:
            self.control.close()    # the process exits when this closes
            with suppress(subprocess.TimeoutExpired):
                process.wait(2)
            process.kill()
            process.wait()

    def run(self, job, calls, patience):
        """(outcomes, whether the program ran out of time because it mostly waited for the CPU).

        patience: a factor of both time limits. Raises OSError if the zygote died.
        """
        outcomes, starved = [], False
        call_timeout, program_timeout = patience * job["call_timeout"], patience * job["program_timeout"]
        deadline = time.monotonic() + program_timeout
        job = {**job, "cpu_seconds": math.ceil(program_timeout) + 1}
        while len(outcomes) < len(calls):    # a new child after each call that ended the last one
            rest = calls[len(outcomes):]
            began = time.monotonic()
            ours, theirs = os.pipe()
            with open(ours, "rb", buffering=0) as results:
                with open(theirs, "wb"), open(os.memfd_create("job"), "wb") as job_file:
                    job_file.write(json.dumps({**job, "calls": rest}).encode())
                    job_file.seek(0)
                    socket.send_fds(self.control, [b"run"], [job_file.fileno(), theirs])
                # The zygote keeps its copy of `theirs` open until the child has ended, so the pipe ends only then.
                received, loaded, ending = read_frames(results, len(rest), call_timeout, deadline)
                self.control.send(b"stop")
            how_it_ended, cpu_seconds, preempted = self.receive()
            if cpu_seconds > program_timeout + 1:    # a kill by the limit of CPU time looks like one for memory
                how_it_ended = "timeout"
            if ending == "timeout" and cpu_seconds < (time.monotonic() - began) / 2 and preempted >= 10:
                starved = True    # a program that sleeps is not preempted
            if ending != "done":    # if the program itself did not load, no other call can succeed
                lost = Outcome(how_it_ended if ending == "gone" else ending)
                received += [lost] * (1 if loaded or received else len(rest))
            outcomes += received
        return outcomes, starved


def readable(files, milliseconds=None):
    """Wait until one of the files has data or has ended; False if that takes too long."""
    poller = select.poll()
    for file in files:
        poller.register(file, select.POLLIN)
    return bool(poller.poll(milliseconds))


def read_frames(results, calls, call_timeout, deadline):
    """Read a child's frames; returns (outcomes, whether the program loaded, how it ended).

    It ends with "done", "gone" (the child ended), "timeout" or "not comparable" (too long a frame).
    """
    outcomes, loaded, buffer = [], False, bytearray()
    call_deadline = time.monotonic() + call_timeout
    while len(outcomes) < calls:
        end = FRAME.size
        if len(buffer) >= end:
            kind, length = FRAME.unpack_from(buffer)
            if length > MAX_RESULT + 4:    # 4: see with_order
                return outcomes, loaded, "not comparable"
            end += length
        if len(buffer) < end:    # not the whole frame yet, or not even its header
            left = min(call_deadline, deadline) - time.monotonic()
            if left <= 0 or not readable([results], math.ceil(left * 1000)):
                return outcomes, loaded, "timeout"
            chunk = results.read(1 << 16)
            if not chunk:
                return outcomes, loaded, "gone"
            buffer += chunk
            continue
        payload = bytes(buffer[FRAME.size:end])
        del buffer[:end]
        if kind == LOADED:
            loaded = True
            continue
        if kind == ERROR:    # the exception's name: the only text from the child that is ever shown
            name = payload[:64].decode("utf-8", "replace")
            plain = name.isascii() and name.isidentifier()
            outcomes.append(Outcome(f"error: {name if plain else 'unnamed'}"))
        else:    # INCOMPARABLE, or a kind that a hostile program made up
            outcomes.append(Outcome("ok", payload) if kind == VALUE else Outcome("not comparable"))
        call_deadline = time.monotonic() + call_timeout
    return outcomes, loaded, "done"


# ---- The layers, through the C library

LIBC = ctypes.CDLL(None, use_errno=True)
X86 = os.uname().machine == "x86_64"
NEW = {"user": 0x10000000, "net": 0x40000000, "pid": 0x20000000, "mount": 0x20000, "ipc": 0x8000000, "uts": 0x4000000}
MS_BIND, MS_REC, MS_PRIVATE, MNT_DETACH = 0x1000, 0x4000, 0x40000, 2
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV = 1, 2, 4
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 1, 4, 22, 24, 38
# Numbers of system calls that the C library has no function for.
PIVOT_ROOT = 155 if X86 else 41
MOUNT_SETATTR = 442
LANDLOCK_CREATE_RULESET = 444
LANDLOCK_ADD_RULE = 445
LANDLOCK_RESTRICT_SELF = 446


def libc(name, *arguments):
    """Call a function of the C library; raises OSError if it fails."""
    result = getattr(LIBC, name)(*(ctypes.c_long(a) if isinstance(a, int) else a for a in arguments))
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{name}({arguments[0]!r}, ...): {os.strerror(error)}")
    return result


def fork(work):
    """Fork a child that calls work() and ends with exit code 0, EXIT_MEMORY or (if it raised) 1; returns its number."""
    if pid := os.fork():
        return pid
    try:
        work()
        os._exit(0)
    except MemoryError:
        os._exit(EXIT_MEMORY)
    finally:
        os._exit(1)


def works_in_a_child(trial):
    """Try a call in a forked process; returns whether it succeeded."""
    return os.waitpid(fork(trial), 0)[1] == 0


def unshare(names, proc_self):
    """Enter new namespaces of these kinds. A new user namespace contains only this user, under the same number."""
    uid, gid = os.getuid(), os.getgid()
    libc("unshare", sum(NEW[name] for name in names))
    if "user" in names:
        for name, line in ("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1"):
            with open(os.open(name, os.O_WRONLY, dir_fd=proc_self), "w") as file:
                file.write(line)


def enter_namespaces():
    """Enter new namespaces, and go on in a forked child, their first process. Returns their kinds.

    Root does not enter a user namespace yet, because pivot_root() needs real root; leave_privileges() adds it.
    """
    names = sorted(NEW)
    if os.getuid() == 0:
        names.remove("user")

    def enter():
        proc_self = os.open("/proc/self", os.O_RDONLY | os.O_DIRECTORY)
        unshare(names, proc_self)
        os.close(proc_self)

    if not works_in_a_child(enter):    # some systems allow the first steps and forbid the later ones
        return []
    enter()
    if zygote := os.fork():    # only a child is inside the new pid namespace; this process waits for it
        os.waitpid(zygote, 0)
        os._exit(0)
    return names


def pivot_root(paths):
    """Switch to a read-only root that contains only `paths`, at the same places and without installed packages."""
    root = b"/proc"    # a folder that exists everywhere and contains none of the paths
    libc("mount", None, b"/", None, MS_REC | MS_PRIVATE, None)
    libc("mount", b"tmpfs", root, b"tmpfs", 0, b"size=1m,mode=755")
    for path in map(os.fsencode, paths):
        os.makedirs(root + path, exist_ok=True)
        libc("mount", path, root + path, None, MS_BIND | MS_REC, None)
        for packages in (path + b"/site-packages", path + b"/dist-packages"):
            if os.path.isdir(packages):
                empty = root + b"/empty" + packages
                os.makedirs(empty)
                libc("mount", empty, root + packages, None, MS_BIND, None)
    current_folder, recursive = -100, 0x8000    # AT_FDCWD, AT_RECURSIVE
    read_only = struct.pack("QQQQ", MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV, 0, 0, 0)
    with suppress(OSError):    # before Linux 5.12; then only seccomp prevents writing
        libc("syscall", MOUNT_SETATTR, current_folder, root, recursive, read_only, len(read_only))
    os.chdir(root)
    libc("syscall", PIVOT_ROOT, b".", b".")    # now the old root is mounted over the new one
    libc("umount2", b".", MNT_DETACH)
    os.chdir("/")


def become_nobody():
    """Raises if user nobody cannot read the library: imports would fail, and right programs would count as wrong."""
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    open(os.__file__).close()


def leave_privileges(proc_self, namespaces, landlock):
    """Turn root into nobody, in its own user namespace, and drop every capability for good.

    If user nobody cannot read the interpreter (in root's home, say, without a pivoted root), we stay root without
    capabilities. That requires Landlock, which prevents this root from reading anything else.
    """
    if os.getuid() == 0 and works_in_a_child(become_nobody):
        become_nobody()
        if namespaces:
            with suppress(OSError):
                libc("prctl", PR_SET_DUMPABLE, 1)    # otherwise root owns our files in /proc
                unshare(["user"], proc_self)
                namespaces.append("user")
    elif os.getuid() == 0 and not landlock:
        raise OSError(f"user nobody cannot read the interpreter's library ({os.path.dirname(os.__file__)}), and "
                      "Landlock is not available; use an interpreter that everyone can read")
    for capability in range(64):
        LIBC.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)    # fails if there is none to drop
    version, this_process = 0x20080522, 0
    libc("capset", struct.pack("Ii", version, this_process), bytes(24))
    libc("prctl", PR_SET_DUMPABLE, 0)    # other processes of this user cannot inspect this one
    libc("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def landlock_rules(paths):
    """Rules that allow only reading under `paths`; returns (Landlock's version or 0, descriptor of the rules)."""
    version = LIBC.syscall(LANDLOCK_CREATE_RULESET, None, ctypes.c_long(0), 1)    # flag 1: returns the version
    if version < 1:
        return 0, None
    read_file, read_folder = 1 << 2, 1 << 3
    rights = {1: 13, 2: 14, 3: 15, 4: 15}.get(version, 16)    # number of file rights in this version
    files = (1 << rights) - 1
    tcp = 3 if version >= 4 else 0
    signals = 3 if version >= 6 else 0
    rules = struct.pack("QQQ", files, tcp, signals)
    ruleset = libc("syscall", LANDLOCK_CREATE_RULESET, rules, len(rules), 0)

    def allow(path, rights):
        fd = os.open(path, os.O_PATH)
        libc("syscall", LANDLOCK_ADD_RULE, ruleset, 1, struct.pack("=Qi", rights, fd), 0)
        os.close(fd)

    for path in paths:
        allow(path, read_folder)
        for entry in os.scandir(path):    # one by one: installed packages may lie inside the library
            if entry.is_file():
                allow(entry.path, read_file)
            elif entry.is_dir() and entry.name not in ("site-packages", "dist-packages"):
                allow(entry.path, read_file | read_folder)
    return version, ruleset


# The allowed system calls, with their numbers on x86-64 and on arm64 (-: does not exist there). The last four are
# allowed only with some arguments; see seccomp_filter.
ALLOWED = """
    read 0 63, write 1 64, close 3 57, stat 4 -, fstat 5 80, lstat 6 -, lseek 8 62, mmap 9 222, mprotect 10 226,
    munmap 11 215, brk 12 214, rt_sigaction 13 134, rt_sigprocmask 14 135, rt_sigreturn 15 139, pread64 17 67,
    readv 19 65, writev 20 66, access 21 -, sched_yield 24 124, mremap 25 216, madvise 28 233, pause 34 -,
    nanosleep 35 101, getitimer 36 102, alarm 37 -, setitimer 38 103, getpid 39 172, exit 60 93, uname 63 160,
    getcwd 79 17, readlink 89 -, gettimeofday 96 169, getrlimit 97 163, getrusage 98 165, sysinfo 99 179,
    times 100 153, getuid 102 174, getgid 104 176, geteuid 107 175, getegid 108 177, getppid 110 173,
    sigaltstack 131 132, gettid 186 178, time 201 -, futex 202 98, sched_getaffinity 204 123, getdents64 217 61,
    restart_syscall 219 128, clock_gettime 228 113, clock_getres 229 114, clock_nanosleep 230 115,
    exit_group 231 94, newfstatat 262 79, readlinkat 267 78, faccessat 269 48, getrandom 318 278, statx 332 291,
    faccessat2 439 439,
    open 2 -, openat 257 56, prlimit64 302 261, fcntl 72 25"""
# Opcodes of the kernel's packet filter (BPF), and the values that a filter returns.
LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, EPERM, KILL = 0x7FFF0000, 0x00050001, 0x80000000


def seccomp_filter():
    """The allow-list as a BPF program, in a struct sock_fprog."""
    number, architecture, argument_0, argument_1, argument_2 = 0, 4, 16, 24, 32    # offsets in struct seccomp_data
    upper_half = 4    # added to the offset of an argument
    writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | 0o20000000    # the last: O_TMPFILE
    any_bit = 0xFFFFFFFF
    refused = {    # a call fails if an argument has one of these bits: (argument's offset, bits)
        "open": [(argument_1, writing)],
        "openat": [(argument_2, writing)],
        "prlimit64": [(argument_0, any_bit),    # another process
                      (argument_2, any_bit),    # a new limit, in either half of the pointer to it
                      (argument_2 + upper_half, any_bit)],
        "fcntl": [(argument_1, any_bit - 3)],    # commands from 4 on: owners, signals, sizes of pipes
    }

    # An instruction: opcode, instructions to skip if its test holds, to skip if not, constant.
    program = [(LOAD, 0, 0, architecture), (EQUAL, 1, 0, 0xC000003E if X86 else 0xC00000B7), (RETURN, 0, 0, KILL),
               (LOAD, 0, 0, number)]
    if X86:
        program += [(AT_LEAST, 0, 1, 0x40000000), (RETURN, 0, 0, KILL)]    # x32
    for row in ALLOWED.split(","):
        name, x86, arm = row.split()
        call = x86 if X86 else arm
        if call == "-":
            continue
        body = []
        for offset, bits in refused.get(name, []):
            body += [(LOAD, 0, 0, offset), (ANY_BIT, 0, 1, bits), (RETURN, 0, 0, EPERM)]
        program += [(EQUAL, 0, len(body) + 1, int(call)), *body, (RETURN, 0, 0, ALLOW)]
    program.append((RETURN, 0, 0, EPERM))

    code = b"".join(struct.pack("HBBI", *instruction) for instruction in program)
    fprog = ctypes.create_string_buffer(16)
    fprog.code = ctypes.create_string_buffer(code)    # stays alive as long as fprog, which points to it
    struct.pack_into("HP", fprog, 0, len(program), ctypes.addressof(fprog.code))
    return fprog


# ---- The zygote and its children

def confine(out_fd, limits, fprog):
    """Add the child's own layers: from here on it can only compute, read the library and write to out_fd."""
    libc("prctl", PR_SET_PDEATHSIG, signal.SIGKILL)    # die with the zygote
    os.closerange(3, out_fd)
    os.closerange(out_fd + 1, 1024)
    for limit, value in limits.items():
        resource.setrlimit(limit, (value, value))
    if fprog:
        libc("prctl", PR_SET_SECCOMP, 2, fprog, 0, 0)    # 2: with a filter


def run_child(job_fd, out_fd, limits, fprog):
    """Run each call in a fresh namespace of the program, with the same random seed; write a frame for each."""
    with open(job_fd, "rb") as job_file:
        job = json.load(job_file)
    limit = job["cpu_seconds"]    # if the parent is too busy to stop it: SIGXCPU, a second later SIGKILL
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 1))
    confine(out_fd, limits, fprog)
    gc.enable()
    program, imported = None, {}
    seed = job["seed"] if job["mode"] == "module" else None    # None: chance, as in the released evaluator
    # Saved now, because a program may replace them.
    collect, write = gc.collect, os.write
    restore_builtins, plain_builtins = vars(builtins).update, dict(vars(builtins))
    for index, call in enumerate(job["calls"]):
        names, value, error_frame = {}, None, None
        try:
            sys.setrecursionlimit(1000)
            random.seed(seed)
            if numpy := sys.modules.get("numpy"):
                numpy.random.seed(seed)
            program = program or compile(job["program"], "<program>", "exec", dont_inherit=True)
            # In mode "released" definitions are local, as for exec and eval inside a function: the program's functions
            # see neither each other, nor themselves, nor its imports.
            scope = {}
            if job["mode"] == "module":
                module = sys.modules["solution"] = types.ModuleType("solution")    # dataclasses look it up there
                scope = names = vars(module)
            exec(program, scope, names)
            if index == 0:
                write(out_fd, FRAME.pack(LOADED, 0))
            for line in job["imports"]:
                with suppress(Exception):
                    exec(line, imported)
            value = eval(call, {**imported, **scope} if imported else scope, names)
        except MemoryError:
            raise    # ends this child and frees its memory; the next call runs in a new one
        except BaseException as error:    # including SystemExit and KeyboardInterrupt
            error_frame = ERROR, TYPE_NAME(type(error)).encode("utf-8", "replace")[:64]
        restore_builtins(plain_builtins)
        sys.setrecursionlimit(10_000)
        try:
            kind, payload = error_frame or (VALUE, canonical(value))
            if kind == VALUE and job["mode"] == "released":
                order = canonical(value, ordered=True)
                payload = len(payload).to_bytes(4, "big") + payload + (order if order != payload else b"")
        except MemoryError:
            raise
        except Exception:    # NotComparable, or whatever a hostile object provokes
            kind, payload = INCOMPARABLE, b""
        write(out_fd, FRAME.pack(kind, len(payload)) + payload)
        value = payload = None
        names.clear()
        collect()    # the program's functions and classes refer to each other


def how_it_died(status):
    """The status of the running call, if the child ended by itself."""
    code = os.waitstatus_to_exitcode(status)    # or the signal's number, negative
    if code in (EXIT_MEMORY, -signal.SIGKILL):
        return "killed: memory"
    if code == -signal.SIGXCPU:
        return "timeout"
    return "killed: exit" if code >= 0 else f"killed: {signal.Signals(-code).name}"


def prepare(options):
    """Turn this process into a zygote: import, isolate. Returns the layers, and a child's limits and filter."""
    without = options["without"]
    os.close(os.pidfd_open(os.getpid()))    # fails before Linux 5.3
    # What a child may read: the standard library (the whole path of a bare interpreter), and time zones.
    paths = [path for path in [*sys.path, "/usr/share/zoneinfo"] if os.path.isdir(path)]

    namespaces = [] if "namespaces" in without else enter_namespaces()
    for name in PRELOADED:
        importlib.import_module(name)
    if options["numpy"]:
        sys.path.append(options["numpy"])
        numpy, *_ = map(importlib.import_module, NUMPY)
        sys.path.remove(options["numpy"])
        REDUCED.update({numpy.generic: (b"", numpy.generic.item),
                        numpy.ndarray: (b"A", lambda o: (numpy.shape(o), numpy.ndarray.tolist(o)))})
        KINDS.update(map(id, REDUCED))
    with open("/proc/self/statm") as statm:    # a child's memory limit comes on top of this
        own_memory = int(statm.read().split()[0]) * resource.getpagesize()
    proc_self = os.open("/proc/self", os.O_RDONLY | os.O_DIRECTORY)
    pivoted = False
    if namespaces:
        with suppress(OSError):
            pivot_root(paths)
            pivoted = True
    landlock, ruleset = (0, None) if "landlock" in without else landlock_rules(paths)
    leave_privileges(proc_self, namespaces, landlock)
    os.close(proc_self)
    if landlock:
        libc("syscall", LANDLOCK_RESTRICT_SELF, ruleset, 0)
        os.close(ruleset)
    if namespaces:    # otherwise the parent is one of the user's threads, and programs would die with it
        libc("prctl", PR_SET_PDEATHSIG, signal.SIGKILL)    # die with the process that holds our namespaces
    fprog = None if "seccomp" in without else seccomp_filter()

    def no_sockets():    # raises if the filter is off
        confine(3, {}, fprog)
        with suppress(PermissionError):
            socket.socket()
            raise OSError("seccomp is off")

    seccomp = fprog is not None and works_in_a_child(no_sockets)
    layers = {"namespaces": sorted(namespaces), "root": "pivoted" if pivoted else "shared", "uid": os.getuid(),
              "landlock": landlock, "seccomp": seccomp, "limits": True}
    limits = {resource.RLIMIT_AS: own_memory + options["memory_bytes"], resource.RLIMIT_FSIZE: 0,
              resource.RLIMIT_NOFILE: 64, resource.RLIMIT_NPROC: 0, resource.RLIMIT_CORE: 0,
              resource.RLIMIT_MEMLOCK: 0}
    os.environ.clear()
    sys.argv[:] = [""]
    return layers, limits, fprog if seccomp else None


def zygote_main():
    """Prepare and report; then fork a child for each pair of descriptors received, one at a time."""
    control = socket.socket(fileno=os.dup(0))
    os.dup2(1, 0)    # standard input: /dev/null, like the others

    def report(what):
        control.send(json.dumps(what).encode())

    try:
        layers, limits, fprog = prepare(json.loads(sys.argv[2]))
    except Exception as error:
        report({"error": str(error)})
        os._exit(1)
    report(layers)
    gc.collect()
    gc.disable()
    gc.freeze()    # otherwise a collection in a child copies every page that exists now

    while True:
        message, fds, _, _ = socket.recv_fds(control, 16, 2)
        if not message:
            os._exit(0)
        pid = fork(lambda: run_child(*fds, limits, fprog))
        pidfd = os.pidfd_open(pid)
        readable([pidfd, control])    # until the child ends, or the parent stops it or is gone
        os.kill(pid, signal.SIGKILL)
        _, status, used = os.wait4(pid, 0)
        for fd in (*fds, pidfd):    # now the parent's pipe ends
            os.close(fd)
        control.recv(16)    # "stop"
        report([how_it_died(status), used.ru_utime + used.ru_stime, used.ru_nivcsw])


if IS_ZYGOTE:
    del Sandbox, Zygote, verdict    # they belong to the parent
    zygote_main()    # never returns
