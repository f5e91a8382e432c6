"""What sandbox.py claims, tried: hostile programs under every set of layers, the canonical bytes against Python's ==,
its limits, repairs, modes and command line."""
import json
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from contextlib import ExitStack
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
import hostile_programs
import sandbox
from conftest import family_of, running
from sandbox import Sandbox, canonical

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox is Linux's")

TASK = {"ground_truth": "def double(x):\n    return helper(x) * 2\n\ndef helper(x):\n    return x\n",
        "test_cases": {str(i): f"double({i})" for i in range(10)}}
PASSED = dict.fromkeys(TASK["test_cases"], "passed")
ALLOWED = {name: numbers for name, *numbers in map(str.split, sandbox.ALLOWED.split(","))}    # [x86-64, arm64 or "-"]
BY_ARGUMENTS = {"open", "openat", "prlimit64", "fcntl"}


@pytest.fixture(scope="module")
def box():
    with Sandbox(workers=2, call_timeout=10, program_timeout=60) as box:    # a busy machine may need long
        yield box


def counted(monkeypatch, owner, name):
    """Replace a function by one that counts: the list that is returned grows by its arguments with each call."""
    calls, function = [], getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *args, **kwargs: (calls.append(args), function(*args, **kwargs))[1])
    return calls


def statuses(outcomes):
    return [outcome.status for outcome in outcomes]


# ---- Hostile programs

def everyones_python():
    """An interpreter that user nobody can run, or None."""
    for name in ("/usr/bin/python3", "/usr/local/bin/python3", sys.executable):
        test = "import sys, os; assert sys.version_info >= (3, 11); import ctypes, json"
        command = [name, "-c", test]
        if os.getuid() == 0 and shutil.which("setpriv"):
            command = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", *command]
        if os.path.exists(name) and subprocess.run(command, capture_output=True).returncode == 0:
            return name


IF_ROOT_SLOW = pytest.mark.slow if os.getuid() == 0 else ()    # root is then tried, which has the same layers


@pytest.mark.parametrize("user, without, step", [
    ("root", "", 1), pytest.param("nobody", "", 1, marks=IF_ROOT_SLOW), ("nobody", "namespaces", 3),
    *(pytest.param(*layers, 1, marks=pytest.mark.slow) for layers in [
        ("nobody", "namespaces"), ("root", "namespaces"), ("nobody", "namespaces,landlock")])])
def test_hostile_programs_are_contained_and_pass_nothing(user, without, step):
    """Copied with the file that it imports, as its own command; sets of layers; as root and as nobody (or as whoever
    runs this). step: how many programs to go on by; 3 tries a third of them."""
    python = everyones_python()
    if user == "root" and os.getuid() != 0:
        pytest.skip("this is not root")
    if python is None or os.getuid() == 0 and not shutil.which("setpriv"):
        pytest.skip("no interpreter (3.11 or newer) that user nobody can run, or no setpriv")
    folder = Path(f"/tmp/sandbox-test-{os.getpid()}")    # pytest's own folders are closed to nobody
    folder.mkdir(mode=0o755)
    try:
        for name in ("sandbox.py", "records.py"):
            shutil.copy(ROOT / name, folder)
        shutil.copytree(ROOT / "tests" / "hostile", folder / "tests" / "hostile")
        shutil.copy(ROOT / "tests" / "hostile_programs.py", folder / "tests")
        subprocess.run(["chmod", "-R", "a+rX", str(folder)], check=True)
        names = sorted(path.stem for path in (folder / "tests" / "hostile").glob("*.py"))[::step]
        command = [python, str(folder / "tests" / "hostile_programs.py"), *(["--only", *names] if step > 1 else []),
                   *(["--without", *without.split(",")] if without else [])]
        if "landlock" in without:    # nothing then keeps programs from this user's files
            as_nobody = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"] * (os.getuid() == 0)
            refused = subprocess.run(as_nobody + command, capture_output=True, text=True, timeout=1200)
            assert refused.returncode == 2 and "programs could read your files" in refused.stderr, refused.stderr
            command.append("--unsafe")
        if user == "nobody" and os.getuid() == 0:
            command = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", *command]
        result = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    finally:
        shutil.rmtree(folder)
    assert result.returncode == 0, result.stdout + result.stderr
    layers = json.loads(result.stdout.splitlines()[0].removeprefix("layers: "))
    assert layers["seccomp"] and layers["uid"] != 0
    if without:
        assert layers["namespaces"] == [] and layers["root"] == "shared"
    counts = re.search(r"(\d+) contained, (\d+) failed, (\d+) beyond", result.stdout)
    contained, failed, skipped = map(int, counts.groups())
    assert failed == 0 and contained + skipped == len(names) and contained >= 80 / step
    if layers["namespaces"]:
        assert layers["namespaces"] == ["ipc", "mount", "net", "pid", "user", "uts"]
        assert layers["root"] == "pivoted" and skipped == 0
    assert not list(Path("/tmp").glob("written-by-*"))


def test_every_hostile_program_states_its_claim_and_what_is_expected():
    programs = list((ROOT / "tests" / "hostile").glob("*.py"))
    assert len(programs) >= 148
    for program in programs:
        text = program.read_text()
        assert hostile_programs.header(text, "claim") and hostile_programs.header(text, "expect"), program
        assert "passed" not in hostile_programs.header(text, "expect").replace("error: passed", ""), program


def test_a_patient_retry_of_an_ignored_signal_is_a_timeout():
    """Its limit of CPU time grows with the wall's, and a kill by it is not one for memory."""
    job = {"program": (ROOT / "tests" / "hostile" / "ignore_signals.py").read_text(), "seed": 0, "mode": "module",
           "imports": "", "call_timeout": 1, "program_timeout": 1}
    with Sandbox(workers=1) as box:
        box.run("", ["1"])
        zygote = box.free[0, None].get()
        outcomes, _ = zygote.run(job, ["solve(1)"], patience=4)
        assert statuses(outcomes) == ["timeout"]


def test_a_program_decides_64_letters_of_its_status():
    """It writes a frame of its own, of an exception whose name has a million letters."""
    program = """
import os, struct
def f(x):
    for fd in range(3, 64):
        try:
            os.write(fd, struct.pack("!cI", b"E", 1 << 20) + b"A" * (1 << 20))
        except OSError:
            pass
"""
    with Sandbox(workers=1) as box:
        task = {"ground_truth": "def f(x): return x", "test_cases": {"1": "f(1)", "2": "f(2)"}}
        assert max(map(len, box.score(task, program).values())) == len("error: ") + 64


def test_an_old_kernel_still_gets_a_root_of_its_own(tmp_path):
    """Before Linux 5.12 there is no mount_setattr, and before 5.13 no Landlock: their numbers are exchanged for none."""
    old = (ROOT / "sandbox.py").read_text().replace("MOUNT_SETATTR = 442", "MOUNT_SETATTR = 10442")
    old = old.replace("LANDLOCK_CREATE_RULESET = 444", "LANDLOCK_CREATE_RULESET = 10444")
    (tmp_path / "sandbox.py").write_text(old)
    shutil.copy(ROOT / "records.py", tmp_path)
    with Sandbox(workers=1) as box:
        if box.layers["root"] != "pivoted":
            pytest.skip("no root can be pivoted here")
    said = subprocess.run([sys.executable, "-c", "import sandbox; print(sandbox.Sandbox(workers=1).layers)"],
                          cwd=tmp_path, capture_output=True, text=True).stdout
    assert "'root': 'pivoted'" in said and "'landlock': 0" in said, said


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="numbers of x86-64")
def test_every_system_call_outside_the_list_fails():
    """Each number, made directly, with arguments that would do no harm; the filter alone must refuse it."""
    allowed = {int(x86) for x86, _ in ALLOWED.values()}
    program = f"""
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
def through(first, last):
    return [number for number in range(first, last) if number not in {sorted(allowed)}
            and number not in (335, 336)    # uretprobe, uprobe: no filter sees them; they kill who is not being probed
            and (libc.syscall(number, -1, -1, -1, -1, -1, -1) != -1 or ctypes.get_errno() != 1)]
"""
    with Sandbox(workers=1, without=["landlock"]) as box:
        assert box.run(program, ["through(0, 512)"])[0] == ("ok", canonical([]))


def filter_says(program, number, arch, arguments=(0,) * 6):
    """What the kernel would: run the filter's instructions on a call's struct seccomp_data."""
    data, at, value = struct.pack("<IIQ6Q", number, arch, 0, *arguments), 0, 0
    while True:
        code, holds, fails, constant = program[at]
        if code == 0x06:
            return {0x7FFF0000: "allow", 0x00050001: "EPERM", 0x80000000: "kill"}[constant]
        if code == 0x20:
            value, jump = struct.unpack_from("<I", data, constant)[0], 0
        else:
            jump = (holds if {0x15: value == constant, 0x35: value >= constant, 0x45: bool(value & constant)}[code]
                    else fails)
        at += 1 + jump


@pytest.mark.parametrize("x86, header, arch", [(True, "x86_64-linux-gnu/asm/unistd_64.h", 0xC000003E),
                                               (False, "asm-generic/unistd.h", 0xC00000B7)])
def test_the_filter_allows_what_it_names_on_both_architectures(x86, header, arch, monkeypatch):
    """The numbers are those of the kernel's headers, and every other call of that architecture ends in EPERM."""
    header = Path("/usr/include") / header
    if not header.is_file():
        pytest.skip(f"{header} is not here (linux-libc-dev)")
    numbers = {name: int(number) for name, number in re.findall(r"#define __NR_?(?:3264_)?(\w+) (\d+)",
                                                                header.read_text())}
    if not x86:
        numbers["newfstatat"] = numbers.pop("fstatat")    # its other name in the generic table
    monkeypatch.setattr(sandbox, "X86", x86)
    fprog = sandbox.seccomp_filter()
    program = [struct.unpack_from("HBBI", fprog.code.raw, 8 * n) for n in range(struct.unpack_from("H", fprog)[0])]
    named = {name for name, pair in ALLOWED.items() if pair[0 if x86 else 1] != "-"}
    assert len(named) > 48 and named <= numbers.keys() and BY_ARGUMENTS - named <= {"open"}
    for name, number in numbers.items():
        expected = "allow" if name in named else "EPERM"    # with zeros as arguments
        assert filter_says(program, number, arch) == expected, name
    assert filter_says(program, numbers["read"], 0x40000003) == "kill", "a foreign architecture"
    assert filter_says(program, numbers["openat"], arch, (0, 0, os.O_WRONLY, 0, 0, 0)) == "EPERM"
    assert filter_says(program, numbers["openat"], arch, (0, 0, os.O_CREAT, 0, 0, 0)) == "EPERM"
    assert filter_says(program, numbers["prlimit64"], arch, (1, 0, 0, 0, 0, 0)) == "EPERM", "another process"
    assert filter_says(program, numbers["prlimit64"], arch, (0, 0, 1 << 40, 0, 0, 0)) == "EPERM", "a new limit"
    for command in range(2048):    # F_SETOWN is 8, F_SETPIPE_SZ 1031
        assert filter_says(program, numbers["fcntl"], arch, (0, command, 0, 0, 0, 0)) == (
            "allow" if command < 4 else "EPERM")


def test_opens_are_read_only_whatever_the_flags(box):
    program = """
import os
def flags():
    wrong = []
    for flag in (os.O_WRONLY, os.O_RDWR, 3, os.O_CREAT, os.O_TRUNC, os.O_APPEND, os.O_TMPFILE, 2 | os.O_TMPFILE):
        try:
            os.open(os.__file__, flag)
            wrong.append(flag)
        except PermissionError:
            pass
    return wrong, os.read(os.open(os.__file__, os.O_RDONLY), 1) != b""
"""
    assert box.run(program, ["flags()"])[0] == ("ok", canonical(([], True)))


def test_a_zygote_that_dies_is_replaced_and_its_job_tried_again(monkeypatch):
    with Sandbox(workers=1, call_timeout=60, program_timeout=60) as box:
        first, runs = box.zygotes[0].process, counted(monkeypatch, box.zygotes[0], "run")
        send = sandbox.socket.send_fds

        def send_and_kill(*args):    # the job is on its way
            send(*args)
            if first.poll() is None:
                first.kill()
                first.wait()
        monkeypatch.setattr(sandbox.socket, "send_fds", send_and_kill)
        assert statuses(box.run("import time", ["time.sleep(0.1)"])) == ["ok"]
        assert len(runs) == 2
        assert box.score(TASK, TASK["ground_truth"]) == PASSED


def test_a_zygote_outlives_the_thread_that_started_it():
    """Without namespaces its parent is this process, whose threads come and go."""
    with Sandbox(workers=1, without=["namespaces"]) as box:
        thread = threading.Thread(target=lambda: box.run("", ["1"], seed=1))
        thread.start()
        thread.join()
        time.sleep(0.3)
        assert box.zygotes[1].process.poll() is None


def test_two_threads_may_close_a_zygote():
    """As after Ctrl-C: the main thread closes all, while the thread of each notices that its socket is gone."""
    with Sandbox(workers=1) as box:
        zygote = box.zygotes[0]
        process, wait = zygote.process, zygote.process.wait

        def wait_while_another_closes(seconds):
            process.wait = wait
            zygote.close()
            raise subprocess.TimeoutExpired("zygote", seconds)
        process.wait = wait_while_another_closes
        zygote.close()
        assert zygote.process is None and process.poll() is not None


def test_a_program_that_kills_its_zygote_twice_is_refused():
    with Sandbox(workers=1, without=["namespaces", "seccomp"], unsafe=True) as box:
        assert not box.layers["seccomp"]
        program = "import os, signal\ndef f(): os.kill(os.getppid(), signal.SIGKILL)"
        assert statuses(box.run(program, ["f()", "f()"])) == ["refused", "refused"]
        assert box.score(TASK, TASK["ground_truth"]) == PASSED


def test_nothing_is_left_running_when_the_parent_is_killed(tmp_path):
    """Neither zygotes nor a child that sleeps for ever."""
    script = f"""
import sys; sys.path.insert(0, {str(ROOT)!r})
from sandbox import Sandbox
box = Sandbox(workers=2, call_timeout=1000, program_timeout=1000)
print("ready", flush=True)
box.run("import time", ["time.sleep(1000)"])
"""
    with running(sys.executable, "-c", script, stdout=subprocess.PIPE) as parent:
        assert parent.stdout.readline() == "ready\n"
        family = []
        while len(family) < 4:    # the parent, a zygote (and the process that holds its namespaces), a child
            family = family_of(parent.pid)
            time.sleep(0.05)
        parent.kill()    # alone, and they end by themselves
        parent.wait()
        deadline = time.monotonic() + 600
        while any(os.path.exists(f"/proc/{pid}") for pid in family) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not [pid for pid in family if os.path.exists(f"/proc/{pid}")]


def test_a_start_takes_as_long_as_the_machine_needs_and_says_so(monkeypatch, capsys):
    monkeypatch.setattr(sandbox, "START_NOTICE", 0.001)
    with Sandbox(workers=1) as box:
        assert statuses(box.run("", ["1"])) == ["ok"]
        assert box.zygotes[0].control.gettimeout() is None
    assert "the sandbox has been starting for 0 s: this machine is busy" in capsys.readouterr().err


# ---- Canonical bytes

SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.integers(-3, 3), st.floats(allow_nan=False), st.text(max_size=4),
    st.sampled_from([0.0, -0.0, 1.0, 2.0, 0.5]), st.binary(max_size=4), st.fractions(max_denominator=4),
    st.decimals(allow_nan=False, places=1), st.complex_numbers(allow_nan=False, max_magnitude=3), st.dates(),
    st.datetimes(), st.timedeltas(),
    st.builds(range, st.integers(-3, 3), st.integers(-3, 3), st.sampled_from([1, 2, -1])))
HASHABLE = st.recursive(SCALARS, lambda part: st.one_of(
    st.tuples(part, part), st.lists(part, max_size=2).map(tuple), st.frozensets(part, max_size=3)), max_leaves=4)
PLAIN = st.recursive(st.one_of(SCALARS, HASHABLE, st.sets(HASHABLE, max_size=3)), lambda part: st.one_of(
    st.lists(part, max_size=3), st.lists(part, max_size=3).map(tuple), st.lists(part, max_size=3).map(deque),
    st.dictionaries(HASHABLE, part, max_size=3)), max_leaves=8)


def twin(value, draw):
    """The same value made otherwise: numbers in other types, entries in another order."""
    kind = type(value)
    if kind in (int, bool, float, Fraction) and value == value and abs(value) < 1 << 50:
        others = [complex(value), Decimal(value)] if kind is not Fraction else []
        return draw([value, Fraction(value), float(value) if Fraction(float(value)) == value else value, *others])
    if kind in (list, tuple, deque):
        return kind(twin(part, draw) for part in value)
    if kind in (set, frozenset):
        return draw([set, frozenset])(reversed([twin(part, draw) for part in value]))
    if kind is dict:
        made = draw([dict, OrderedDict, lambda pairs: defaultdict(int, pairs)])
        return made([(twin(key, draw), twin(entry, draw)) for key, entry in reversed(value.items())])
    if kind is bytes:
        return draw([bytes, bytearray])(value)
    return value


def many(examples):
    """Hypothesis's settings for so many examples."""
    return settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("examples", [500, pytest.param(10_000, marks=pytest.mark.slow)])
def test_canonical_bytes_agree_with_pythons_equality_on_plain_data(examples):
    many(examples)(given(PLAIN, PLAIN, st.integers(0, 1 << 30))(assert_equal_as_bytes))()


def assert_equal_as_bytes(one, other, seed):
    assert (canonical(one) == canonical(other)) == (one == other)
    try:
        same = twin(one, random.Random(seed).choice)
    except TypeError:    # an unhashable twin inside a set or a key
        return
    assert same == one and canonical(same) == canonical(one)
    assert (canonical(same) == canonical(other)) == (same == other)


NOON = datetime(2020, 1, 1, 12, tzinfo=timezone.utc)


@pytest.mark.parametrize("one, other, equal", [
    (1, True, True), (1, 1.0, True), (0.5, Fraction(1, 2), True), (0.1, Fraction(1, 10), False),
    (0.1, Decimal("0.1"), False), (2 ** 53 + 1, float(2 ** 53), False), (0.0, -0.0, True), (1 + 0j, 1, True),
    ([1], (1,), False), ({1, 2}, frozenset([2, 1]), True), ({1: 2, 3: 4}, {3: 4.0, True: 2}, True),
    (b"a", bytearray(b"a"), True), (b"a", "a", False), ("ab", "ac", False), (b"ab", b"ac", False), ("", None, False),
    ([], {}, False),
    ([[1], 2], [1, [2]], False), (["ab", "c"], ["a", "bc"], False), ({"a": ["b"]}, {"a": "b"}, False),
    (range(0), range(5, 5), True), (range(0, 3, 2), range(0, 4, 2), True), (range(3), [0, 1, 2], False),
    (date(2020, 1, 1), datetime(2020, 1, 1), False),
    (NOON, NOON.astimezone(timezone(timedelta(hours=1))), True),
    (OrderedDict(a=1, b=2), {"b": 2, "a": 1}, True), (Counter("aab"), {"a": 2, "b": 1}, True),
    (defaultdict(list), {}, True), (namedtuple("P", "x y")(1, 2), (1, 2), True), ("\ud800", "\ud800", True),
    ("\ud800", "?", False), (float("inf"), Decimal("Infinity"), True), (float("inf"), float("-inf"), False),
    (10 ** 400, 10 ** 400 + 1, False), (Decimal("1e400"), 10 ** 400, True)])
def test_equality_is_pythons_where_it_is_tricky(one, other, equal):
    assert (one == other) is equal
    assert (canonical(one) == canonical(other)) is equal


def test_equality_departs_from_pythons_where_the_docstring_says_so():
    nan = float("nan")
    assert canonical(nan) == canonical(-nan) == canonical(Decimal("NaN")) and canonical([nan]) == canonical([nan])
    assert canonical(OrderedDict([(1, 1), (2, 2)])) == canonical(OrderedDict([(2, 2), (1, 1)]))
    assert canonical([1]) != canonical((1,))


def test_programs_see_the_standard_library_alone():
    with Sandbox(workers=1) as box:
        assert statuses(box.run("import numpy", ["1"])) == ["error: ModuleNotFoundError"]


PIECES = """[] | {} | () | x | x.y | x() | lambda: x | [x] * 9 | {x: x} | x + x | x ** x | -x | not x | f(x) | f | ''
 | 'a' * x | 1 / x | next(x) | iter([x]) | type(x) | object() | [*x] | {**x} | x[0] | x[:] | print(x) | range(x)
 | dir(x) | vars() | globals() | __import__('os').getpid() | (yield x) | x if x else f | exec('y = x') | 1_000_000 ** 99
 | float(x) | ... | NotImplemented | {x} | f.__code__ | x.__class__ | x.__class__.__mro__ | memoryview(b'a')
 | __builtins__ | b'' | 1j | (x,) | [i for i in x] | @ | \0 | é""".replace("\n", "").split(" | ")
LINES = ["return {}", "return [{}, x]", "x = {}", "raise {}", "del {}", "for x in {}: pass", "with {}: pass",
         "import {}", "try: {}\n finally: x = 1", "global x; x = {}", "assert {}", "def f(x): return {}",
         "class C({}): pass", "{}", "while {}: break", "async def f(x): {}", "{} = x"]


@pytest.mark.parametrize("hundreds", [10, pytest.param(100, marks=pytest.mark.slow)])
def test_random_programs_are_data(box, hundreds):
    """Each gets a status for each call; none raises in the parent, and honest programs around them still pass."""
    many(hundreds // 5)(given(st.integers(0, 1 << 30))(lambda seed: run_random_programs(box, seed)))()


def run_random_programs(box, seed):
    task = {"ground_truth": "def f(x): return x, 'of the reference'",
            "test_cases": {"1": "f(3)", "2": "f([1])", "3": "f('a')"}}
    draw = random.Random(seed)
    bodies = [[draw.choice(LINES).format(draw.choice(PIECES)) for _ in range(draw.randint(1, 5))] for _ in range(500)]
    items = [(i, task, "def f(x):\n pass\n " + "\n ".join(body)) for i, body in enumerate(bodies)]
    results = dict(box.score_many([*items, ("honest", task, task["ground_truth"])]))
    assert len(results) == len(items) + 1
    assert set(results.pop("honest").values()) == {"passed"}
    for found in results.values():
        assert list(found) == ["1", "2", "3"]
        for status in found.values():
            assert status in ("wrong", "timeout", "not comparable") or status.startswith(("error: ", "killed: "))


# ---- Programs, modes, statuses

def test_a_program_is_a_module(box):
    program = """
import math
from dataclasses import dataclass
LIMIT = 3
@dataclass
class Point:
    x: "int"
    def length(self): return math.hypot(self.x, LIMIT + 1)
def helper(n): return 1 if n < 2 else n * helper(n - 1)
def f(n): return Point(n).length(), helper(n), __name__, [LIMIT for _ in range(n)]
"""
    assert box.run(program, ["f(3)"])[0].value == canonical((5.0, 6, "solution", [3, 3, 3]))


def test_each_call_has_a_fresh_namespace_and_the_same_seed(box):
    program = """
import random, builtins
seen = []
def f(x):
    seen.append(x)
    builtins.len = None
    return seen, random.random()
"""
    first, second, third = box.run(program, ["f(1)", "f(1)", "len('ab')"])
    assert first.status == "ok" and first == second and third.value == canonical(2)
    assert box.run(program, ["f(1)"], seed=1)[0] != first


def test_released_mode_splits_the_namespace_and_never_passes_none(box):
    assert set(box.score(TASK, TASK["ground_truth"], mode="released").values()) == {"reference error: NameError"}
    task = {"ground_truth": "def f(x):\n    return x if x else None", "test_cases": {"a": "f(1)", "b": "f(0)"}}
    assert box.score(task, task["ground_truth"]) == {"a": "passed", "b": "passed"}
    assert box.score(task, task["ground_truth"], mode="released") == {"a": "passed", "b": "wrong"}
    imports = "import math\ndef f(x):\n    return math.floor(x)"
    assert box.score(task, imports, mode="released") == {"a": "error: NameError", "b": "error: NameError"}
    task = {"ground_truth": "def f(x): return float('nan')", "test_cases": {"a": "f(1)"}}
    assert box.score(task, task["ground_truth"], mode="released") == {"a": "wrong"}, "not equal to itself there"
    assert box.score(task, task["ground_truth"]) == {"a": "passed"}


SQUARE = {"ground_truth": "def f(x): return x * x", "test_cases": {"a": "f(2)", "b": "f(3)"}}


@pytest.mark.parametrize("answer, passes", [
    ("def f(x): return x * x", True),
    ("Here:\n```python\ndef f(x): return x * x\n```\nDone.", True),
    ("```\ndef f(x): return x * x\n```", True),
    ("```python\ndef f(x): return x * x", True),
    ("import os\ndef f(x): return x * x", False),
    ("def f(x):\n    'No exit() needed.'\n    return x * x", False),
    ("I ran it with sudo.\n```python\ndef f(x): return x * x\n```", False),
    ("```python\ndef f(x): return x\n```\nNo, this is right:\n```python\ndef f(x): return x * x\n```", False),
    ("```python\ndef f(x): return x * x\n```\nor, wrong,\n```python\ndef f(x): return x\n```", True),
    ("```py\ndef f(x): return x * x\n```", False),
    ("Here:\n\ndef f(x): return x * x", False),
    (None, False)])
def test_released_mode_reads_the_raw_answer_as_the_release_does(box, answer, passes):
    """Its forbidden texts count wherever they stand, and of several blocks the first one is run."""
    found = box.score(SQUARE, answer, mode="released")
    assert (set(found.values()) == {"passed"}) is passes and (passes or "passed" not in found.values()), found


def test_released_mode_gives_each_call_its_second():
    slow = {"ground_truth": "def f(x): return x", "test_cases": {str(n): f"f({n})" for n in range(5)}}
    doze = "def f(x):\n    import time\n    time.sleep(0.5)\n    return x"
    with Sandbox(workers=1, call_timeout=60, program_timeout=0.6) as box:
        assert list(box.score(slow, doze).values()).count("timeout") >= 3
        assert set(box.score(slow, doze, mode="released").values()) == {"passed"}


def test_an_unknown_mode_is_refused(box):
    with pytest.raises(ValueError, match="module or released"):
        box.run("", ["1"], mode="relased")


def test_every_failure_has_its_own_status(box):
    program = """
import os, time
def f(kind):
    if kind == "right": return 1
    if kind == "wrong": return 2
    if kind == "error": return {}["x"]
    if kind == "timeout": time.sleep(100)
    if kind == "memory": return len(bytearray(1 << 40))
    if kind == "exit": os._exit(0)
    if kind == "object": return object()
"""
    found = {"right": "passed", "wrong": "wrong", "error": "error: KeyError", "timeout": "timeout",
             "memory": "killed: memory", "exit": "killed: exit", "object": "not comparable"}
    task = {"ground_truth": "def f(kind): return 1", "test_cases": {kind: f"f({kind!r})" for kind in found}}
    with Sandbox(workers=1, call_timeout=2, program_timeout=300) as patient:    # a busy machine may need long
        assert patient.score(task, program) == found
    for code in (None, 3, "#" * (1 << 20) + "\n"):
        assert set(box.score(task, code).values()) == {"refused"}
    task["ground_truth"] = "def f(kind): return 1 / 0"
    assert set(box.score(task, program).values()) == {"reference error: ZeroDivisionError"}
    assert set(statuses(box.run("\ud800", ["1"]))) <= {"error: UnicodeEncodeError", "error: SyntaxError"}
    assert box.run("x = 1", []) == []


def test_calls_after_a_lost_one_are_still_run(box):
    program = "import os\ndef f(x): return os._exit(1) if x % 2 else x"
    assert statuses(box.run(program, [f"f({i})" for i in range(6)])) == ["ok", "killed: exit"] * 3


def test_time_is_kept_per_call_and_per_program(monkeypatch):
    with Sandbox(workers=1, call_timeout=1.5, program_timeout=300) as box:
        assert statuses(box.run("import time", ["1", "time.sleep(1000)", "2"])) == ["ok", "timeout", "ok"]
    with Sandbox(workers=1, call_timeout=300, program_timeout=2) as box:
        found = statuses(box.run("import time", ["time.sleep(0.6)"] * 20))
        assert found.count("ok") <= 3 and set(found[3:]) == {"timeout"}
        children = counted(monkeypatch, sandbox, "read_frames")
        assert statuses(box.run("import time\ntime.sleep(1000)", ["1"] * 10)) == ["timeout"] * 10
        assert len(children) == 1, "once, not once a call"


def test_memory_is_what_was_asked_for():
    with Sandbox(workers=1, memory_mb=64, call_timeout=60, program_timeout=60) as box:
        calls = ["len(bytearray(40 << 20))", "len(bytearray(80 << 20))"]
        assert statuses(box.run("", calls)) == ["ok", "killed: memory"]


@pytest.mark.parametrize("program", [
    "class Cache:\n    data = bytearray(100 << 20)\ndef f(x): return len(Cache.data)",
    "class Grid: pass\ng = Grid()\ng.me, g.data = g, bytearray(100 << 20)\ndef f(x): return 1",
    "hoard = bytearray(100 << 20)\ndef f(x): return len(hoard)"])
def test_what_a_call_held_is_free_again_for_the_next(box, program):
    assert statuses(box.run(program, ["f(1)"] * 6)) == ["ok"] * 6    # each has 256 MB


def test_a_call_without_memory_takes_its_hoard_along(box):
    program = """
import math
def f(x):
    math.hoard = []
    while True: math.hoard.append(bytearray(1 << 20))
def g(x): return len(bytearray(8 << 20))
"""
    assert statuses(box.run(program, ["g(0)", "f(1)", "g(1)", "g(2)"])) == ["ok", "killed: memory", "ok", "ok"]


def test_a_program_that_closes_its_results_late_gains_no_time():
    with Sandbox(workers=1, call_timeout=1.5, program_timeout=1.5) as box:
        box.run("", ["1"])
        started = time.monotonic()
        late = "import os, time\ndef f():\n    time.sleep(1.3)\n    for fd in range(64):\n        try: os.close(fd)\n"
        assert statuses(box.run(late + "        except OSError: pass\n    time.sleep(9999)", ["f()"])) != ["ok"]
        assert time.monotonic() - started < 1000


def test_only_a_program_that_waited_for_the_cpu_is_run_again(monkeypatch):
    """It takes 0.45 seconds of CPU and has 1 second, in which it is done or has waited more than half of the time. Three others
    want each core."""
    task = {"ground_truth": "def f(x):\n    return x\n", "test_cases": {"1": "f(1)"}}
    slow = """import time
def f(x):
    start = time.process_time()
    while time.process_time() - start < 0.45: pass
    return x
"""
    with Sandbox(workers=1, call_timeout=1) as box:
        box.score(task, "")    # the reference while it is quiet
        with ExitStack() as burners:
            for _ in range(3 * len(os.sched_getaffinity(0))):
                burners.enter_context(running(sys.executable, "-c", "while True: pass"))
            assert box.score(task, slow) == {"1": "passed"}
        for _ in range(10):    # what else runs here may keep the start of a sleeping program waiting, but not ten times
            runs = counted(monkeypatch, box.zygotes[0], "run")
            assert box.score(task, "import time\ndef f(x):\n    time.sleep(99)\n") == {"1": "timeout"}
            monkeypatch.undo()
            if len(runs) == 1:
                break
        assert len(runs) == 1, "not tried again"


def test_after_ctrl_c_the_next_answer_belongs_to_the_next_question(box):
    def interrupt(*_):
        raise KeyboardInterrupt
    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with pytest.raises(KeyboardInterrupt):
            box.run("while True: pass", ["1"])
    finally:
        signal.signal(signal.SIGALRM, before)
    assert [box.run("", [str(n)])[0].value for n in range(4)] == [canonical(n) for n in range(4)]


def test_check_reference_marks_what_a_test_cannot_rest_on(box):
    program = """
import random, time
def f(kind):
    if kind == "chance": return random.random()
    if kind == "clock": return time.perf_counter_ns()
    if kind == "hash": return list({"a", "b", "c", "d", "e", "f"})
    if kind == "none": return None
    if kind == "raises": raise ValueError
    if kind == "object": return object()
    return kind
"""
    kinds = ["good", "chance", "clock", "hash", "none", "raises", "object"]
    found = box.check_reference({"ground_truth": program, "test_cases": {kind: f"f({kind!r})" for kind in kinds}})
    assert found == {"good": "ok", "chance": "differs", "clock": "differs", "hash": "differs", "none": "none",
                     "raises": "error: ValueError", "object": "not comparable"}


def test_the_references_results_are_made_once_a_task(box, monkeypatch):
    task = {"ground_truth": "def f(x):\n    return x  # the reference", "test_cases": {"1": "f(1)"}}
    runs = counted(monkeypatch, box, "run")
    for _, found in box.score_many((i, task, "def f(x): return x") for i in range(20)):
        assert found == {"1": "passed"}
    assert [args[0] for args in runs].count(task["ground_truth"]) == 1 and len(runs) == 21


def test_a_reference_that_returns_nothing_lets_nobody_pass(box):
    """It sorts in place, or prints: every stub would return the same."""
    task = {"ground_truth": "def f(x): x.sort()", "test_cases": {"1": "f([2, 1])", "2": "f([])"}}
    for code in (task["ground_truth"], "def f(x): pass"):
        assert set(box.score(task, code).values()) == {"reference returns None"}
    task = {"ground_truth": "def f(x): return x or None", "test_cases": {"1": "f(1)", "2": "f(0)"}}
    assert set(box.score(task, task["ground_truth"]).values()) == {"passed"}, "None is a result beside others"


@pytest.mark.parametrize("imports, call, passes", [
    ("from datetime import date", "f(date(2020, 1, 2))", True), ("import datetime as dt", "f(dt.date(2020, 1, 2))", True),
    ("from datetime import (\n    date,\n    time)", "(lambda: f(date(2020, 1, 2)))()", True),
    ("from datetime import *", "f(date(2020, 1, 2))", True), ("from datetime import \\\n    date", "f(date(2020, 1, 2))", True),
    ("from datetime import date", "f(Date(2020, 1, 2))", False)])
def test_a_call_may_use_what_the_reference_imports(box, imports, call, passes):
    """The program may not: whoever forgets an import fails."""
    task = {"ground_truth": f"{imports}\ndef f(day): return day.year", "test_cases": {"1": call}}
    assert box.score(task, "def f(day): return day.year") == {
        "1": "passed" if passes else "reference error: NameError"}
    if passes:
        assert box.score(task, "def f(day): return date(2020, 1, 2).year or dt.date") == {"1": "error: NameError"}
        assert box.score(task, "date = 3\ndef f(day): return day.year")["1"] in ("passed", "error: TypeError")


def test_views_of_a_dict_patterns_and_builtin_classes_are_compared(box):
    task = {"ground_truth": "import re\ndef f(k, v):\n    d = {k: v}\n    return [d.keys(), d.items(), re.compile(k), int, ..., memoryview(b'a')]",
            "test_cases": {"1": "f('a', [1])"}}
    assert box.score(task, task["ground_truth"]) == {"1": "passed"}
    for one, other in (("d.keys()", "d.items()"), ("re.compile(k)", "re.compile(k, 2)"), ("int,", "float,")):
        assert box.score(task, task["ground_truth"].replace(one, other)) == {"1": "wrong"}, other
    assert canonical({1: 2}.keys()) == canonical({1}) and canonical({1: 2}.items()) == canonical({(1, 2)})
    assert statuses(box.run("class int: pass", ["int"])) == ["not comparable"], "a class of the program"


def test_numpy_is_there_where_reference_or_answer_import_it(box):
    task = {"ground_truth": "def f(x):\n    import numpy as np\n    return np.cumsum(x), np.mean(x), np.linalg.det(np.eye(2))",
            "test_cases": {"1": "f([1, 2])", "2": "f([3])"}}
    assert set(box.score(task, task["ground_truth"]).values()) == {"passed"}
    task["ground_truth"] = "def f(x):\n    from numpy import int64, random\n    return int64(sum(x)), random.rand()"
    assert set(box.score(task, task["ground_truth"]).values()) == {"passed"}, "seeded"
    assert set(box.check_reference(task).values()) == {"differs"}
    task["ground_truth"] = "def f(x): return sum(x)"
    for mode in ("module", "released"):
        assert set(box.score(task, "def f(x):\n    import numpy\n    return numpy.sum(x)", mode).values()) == {"passed"}
    assert statuses(box.run("import numpy", ["1"])) == ["error: ModuleNotFoundError"]


def test_hostile_programs_gain_nothing_by_numpy(box):
    for name in ("read_files", "write_file", "fork_once", "sockets", "execute", "eq_always_true", "web"):
        source = (ROOT / "tests" / "hostile" / f"{name}.py").read_text()
        found = box.score(hostile_programs.HOSTILE_TASK, "import numpy\n" + source)
        assert "passed" not in found.values() and "error: ModuleNotFoundError" not in found.values(), (name, found)


@pytest.mark.parametrize("reference, answer, status", [
    ("OrderedDict(a=1, b=2)", "OrderedDict(b=2, a=1)", "wrong"), ("OrderedDict(a=1, b=2)", "dict(b=2, a=1)", "passed"),
    ("[OrderedDict(a=1)]", "[OrderedDict(a=1.0)]", "passed"), ("Counter(a=0)", "Counter()", "passed"),
    ("Counter(a=0)", "{}", "wrong"), ("Counter('ab')", "{'b': 1, 'a': 1}", "passed"), ("random()", "random()", "wrong"),
    ("shuffled('abcdefghij')", "shuffled('abcdefghij')", "wrong"), ("list(set('abcdef'))", "list(set('abcdef'))", "passed"),
    ("sleep(2) or 1", "1", "passed"), ("1", "sleep(99) or 1", "timeout"), ("int", "int", "passed"),
    ("b'a'", "memoryview(b'a')", "passed")])
def test_released_mode_scores_odd_programs_as_the_released_evaluator(reference, answer, status):
    start = """def f(x):
    from collections import Counter, OrderedDict
    from random import random, shuffle
    from time import sleep
    def shuffled(text):
        letters = list(text)
        shuffle(letters)
        return letters
    return """
    with Sandbox(workers=1, call_timeout=1) as box:
        assert box.score({"ground_truth": start + reference, "test_cases": {"1": "f(1)"}}, start + answer, "released") == {
            "1": status}


def test_many_threads_can_share_a_sandbox(box):
    results = {}

    def work(n):
        results[n] = [box.run(f"def f(): return {n}, {i}", ["f()"])[0].value == canonical((n, i)) for i in range(20)]

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 8 and all(map(all, results.values()))


def test_score_many_reads_only_a_little_ahead_and_stops_when_told(box):
    read = []

    def items():
        for i in range(10_000):
            read.append(i)
            yield i, TASK, TASK["ground_truth"]

    stream = box.score_many(items())
    assert next(stream) == (0, PASSED)
    stream.close()
    assert len(read) < 500


# ---- The command line

@pytest.mark.parametrize("arguments, complaint", [
    (["--luck"], "--luck"), (["--without", "luck"], "luck"), (["--without", "seccomp"], "--unsafe"),
    (["--only", "luck"], "no luck.py")])
def test_a_users_mistake_is_one_sentence(arguments, complaint):
    result = subprocess.run([sys.executable, ROOT / "tests" / "hostile_programs.py", *arguments], capture_output=True,
                            text=True, timeout=600)
    assert result.returncode == 2 and complaint in result.stderr.splitlines()[-1], result.stderr
    assert "Traceback" not in result.stderr


def test_without_hostile_programs_their_runner_says_where_they_belong(tmp_path):
    (tmp_path / "tests").mkdir()
    for name in ("sandbox.py", "records.py", "tests/hostile_programs.py"):
        shutil.copy(ROOT / name, tmp_path / name)
    result = subprocess.run([sys.executable, tmp_path / "tests" / "hostile_programs.py"], capture_output=True, text=True)
    assert result.returncode == 2 and result.stderr.endswith("copy tests/hostile to there\n"), result.stderr
