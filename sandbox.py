#!/usr/bin/env python3
"""Run untrusted Python programs and compare what they return, without believing a word they say.

    with Sandbox(workers=2) as box:
        box.run("def f(x): return x + 1", ["f(1)", "f('a')"])    # [Outcome("ok", b"n2;"), Outcome("error: TypeError")]
        box.score(task, code)                                    # {"1": "passed", "2": "wrong", "3": "timeout", ...}
        for key, statuses in box.score_many(items): ...          # a stream of (key, task, code), on all workers

    python sandbox.py --in answers.jsonl --out results.jsonl     # records with a task and an answer (Python source)
    python sandbox.py --self-test                                # prints the layers, runs hostile programs

How it works
    parent      (your process) hands out jobs, keeps the time, compares bytes. Expected results never leave it.
    zygote      a clean interpreter (-s -S -P, fixed hash seed, empty environment), one per worker. It imports the
                common standard library, walls itself in, and forks one child per program. It never reads a program.
    child       reads its job from a descriptor that the zygote only passed on, gives up its system calls, and runs.
                Each call runs in a fresh namespace of the same program. Each result is written as it is made, in
                canonical bytes.

What the bytes mean. Two results are equal when their canonical bytes are. On plain data that is Python's own ==:
1 == 1.0 == True == Fraction(1), sets and dicts regardless of order, [1] != (1,) (equal with tuples_as_lists). The bytes
are made from the built-in part of an object, never by its own methods: an int subclass counts as its int, whatever
its __eq__ says. Departures: NaN equals itself; OrderedDicts compare as dicts; objects of unknown classes, generators,
functions, and results beyond 1 MB or 200 levels are "not comparable", and so never pass.

Statuses    passed, wrong, error: TypeError, timeout, killed: memory, killed: exit, killed: SIGSEGV, killed: silent (it
            closed its results and stayed), not comparable, refused (not a string, too large, or its zygote died twice),
            and "reference ..." where the reference itself gave no result. A call that kills the child costs that call:
            the rest run in a new child, within the program's time.
Modes       "module": the program is a module, as its author meant. "released": as in the released ColBench evaluator,
            names defined at top level are local (helpers, recursion and imports fail inside functions), and None
            never passes.

What holds a program in. Each layer is tried at the start; `box.layers`, kept in scored records, says which are on:
    namespaces  user, network, pid, mount, ipc, uts; the root holds only the interpreter's library, read-only
    uid         nobody, where started as root (but see leave_privileges); no capabilities, no_new_privs
    Landlock    only that library can be read, nothing written, no TCP, no signals out
    seccomp     an allow-list. No sockets, processes, threads, exec, kill, ptrace, io_uring, memfd; opens are read-only;
                calls of a foreign architecture kill. Everything else fails with EPERM
    limits      address space, CPU, file size, open files, core; other descriptors closed, standard streams on /dev/null
    time        the parent waits and sends SIGKILL; nothing is raised inside the program
Without user namespaces or Landlock the other layers stay. Without seccomp it refuses to start unless unsafe=True
(--unsafe). Linux only, on x86-64 or arm64 (whose filter is checked against the kernel's table, but has not been run).

What is shared. Namespaces, root and Landlock domain belong to the zygote: its children run in them one after another,
never two at once, with nothing writable and no IPC in them. The calls of one program share a process: a module's
attribute that call 1 sets (math.pi = 3) is still there in call 2; builtins are restored. None of it holds anything of
the reference's.

What it does not stop: kernel bugs; timing and cache side channels; burning CPU and memory up to the limits; a
reference that reads the clock (see check_reference). Where the root cannot be pivoted, a program can learn which paths
exist, and with neither pivot nor Landlock it can read what any user can read. Programs that need threads,
subprocesses, sockets (asyncio.run makes one) or shared libraries that the zygote has not loaded fail with an error that
says so.
"""
import builtins
import ctypes
import datetime
import decimal
import fractions
import gc
import importlib
import json
import math
import os
import random
import resource
import select
import signal
import socket
import struct
import sys
import types
from collections import deque

MAX_RESULT = 1 << 20     # bytes of one canonical result; larger ones are "not comparable"
MAX_PROGRAM = 1 << 20    # characters of one program with its calls; larger ones are "refused"
MAX_DEPTH = 200          # levels of one result; deeper and self-referential ones are "not comparable"
NOBODY = 65534           # user and group of the children where the parent is root
EXIT_MEMORY = 77         # exit code of a child that had no memory left
FRAME = struct.Struct("!cI")    # what a child writes: the kind of frame, the length of the payload that follows
LOADED, VALUE, ERROR, ODD = b"L", b"V", b"E", b"N"
PRELOADED = """abc base64 bisect calendar cmath copy csv dataclasses enum functools hashlib heapq itertools numbers
    operator re statistics string textwrap time typing unicodedata urllib.parse uuid""".split()    # more: slower forks


# ---------------------------------------------------------------------------------------------------------------------
# Canonical bytes

class NotComparable(Exception):
    """A result that has no canonical bytes."""


def canonical(value, tuples_as_lists=False):
    """The canonical bytes of a result; two results are equal when their bytes are.

    Nothing here runs code of the object's class: kinds are found by the identity of the classes in the true __mro__,
    contents are read through the built-in class (list.__iter__(o), not iter(o)). `room` bounds the work on shared
    structures.
    """
    room = MAX_RESULT

    def take(size):
        nonlocal room
        room -= size
        if room < 0:
            raise NotComparable("too large")

    def text(tag, data):    # a length in front of everything of variable size: no two results share their bytes
        take(len(data) + 8)
        return b"%s%x:%s" % (tag, len(data), data)

    def ratio(top, bottom):    # exact, in hexadecimal: printing in decimal is quadratic in the number of digits
        take((top.bit_length() + bottom.bit_length()) // 4 + 6)
        return b"n%x;" % top if bottom == 1 else b"n%x/%x;" % (top, bottom)

    def real(x):
        return ratio(*x.as_integer_ratio()) if math.isfinite(x) else text(b"f", b"%f" % x)    # nan, inf or -inf

    def items(tag, length, parts, depth):
        if length > room:
            raise NotComparable("too large")
        take(8)
        encoded = [encode(part, depth + 1) for part in parts]
        if tag == b"S":
            encoded.sort()
        return b"%s%x[%s]" % (tag, length, b"".join(encoded))

    def encode(o, depth):
        if depth > MAX_DEPTH:
            raise NotComparable("too deep")
        kind = KINDS.get(id(type(o))) or next((KINDS[id(base)] for base in MRO(type(o)) if id(base) in KINDS), None)
        if kind == "int":    # bool too
            return ratio(int.__add__(o, 0), 1)
        if kind == "str":
            if str.__len__(o) > room:
                raise NotComparable("too large")
            return text(b"s", str.__str__(o).encode("utf-8", "surrogatepass"))
        if kind == "float":
            return real(float.__add__(o, 0.0))
        if kind == "none":
            return b"N"
        if kind == "list":
            return items(b"l", list.__len__(o), list.__iter__(o), depth)
        if kind == "tuple":
            return items(b"l" if tuples_as_lists else b"t", tuple.__len__(o), tuple.__iter__(o), depth)
        if kind == "dict":
            if dict.__len__(o) > room:
                raise NotComparable("too large")
            take(8)
            pairs = sorted([encode(key, depth + 1) + encode(entry, depth + 1) for key, entry in dict.items(o)])
            return b"d%x[%s]" % (len(pairs), b"".join(pairs))
        if kind == "set":
            return items(b"S", set.__len__(o), set.__iter__(o), depth)
        if kind == "frozenset":
            return items(b"S", frozenset.__len__(o), frozenset.__iter__(o), depth)
        if kind == "deque":
            return items(b"q", deque.__len__(o), deque.__iter__(o), depth)
        if kind == "bytes" or kind == "bytearray":
            base = bytes if kind == "bytes" else bytearray
            if base.__len__(o) > room:
                raise NotComparable("too large")
            return text(b"b", bytes(base.__getitem__(o, slice(None))))
        if kind == "complex":
            re, im = complex.__getnewargs__(o)
            return real(re) if im == 0 else text(b"c", real(re) + real(im))
        if kind == "fraction":
            top, bottom = FRACTION_TOP(o), FRACTION_BOTTOM(o)    # plain slots, which a program can fill with anything
            if type(top) is not int or type(bottom) is not int or bottom < 1:
                raise NotComparable("a Fraction of something else than whole numbers")
            common = math.gcd(top, bottom)
            return ratio(top // common, bottom // common)
        if kind == "decimal":
            if not decimal.Decimal.is_finite(o):
                return real(math.nan if decimal.Decimal.is_nan(o) else decimal.Decimal.__float__(o))
            if abs(decimal.Decimal.adjusted(o)) > 10_000:
                raise NotComparable("too large")
            return ratio(*decimal.Decimal.as_integer_ratio(o))
        if kind == "range":    # ranges are equal when the numbers in them are
            start, stop, step = RANGE_START(o), RANGE_STOP(o), RANGE_STEP(o)
            size = max(0, -((start - stop) // step))
            return items(b"r", 3, (size, start if size else 0, step if size > 1 else 0), depth)
        if kind == "datetime":
            zone = DATETIME_ZONE(o)
            if zone is not None:
                if type(zone) is not datetime.timezone or type(o) is not datetime.datetime:
                    raise NotComparable("a time zone with methods of its own")
                o = o.astimezone(datetime.timezone.utc)
            return text(b"D", datetime.datetime.isoformat(o).encode())
        if kind == "date":
            return text(b"Y", datetime.date.isoformat(o).encode())
        if kind == "time" and TIME_ZONE(o) is None:
            return text(b"T", datetime.time.isoformat(o).encode())
        if kind == "timedelta":
            return text(b"I", b"%d" % datetime.timedelta.__floordiv__(o, datetime.timedelta(microseconds=1)))
        if kind == "ndarray":
            if ARRAY_SIZE(o) > room or ARRAY_TYPE(o).kind in "mM":    # of times: tolist() forgets their unit
                raise NotComparable("too large, or times")
            return items(b"a", 2, (ARRAY_SHAPE(o), NUMPY.ndarray.tolist(o)), depth)
        if kind == "scalar" or kind == "moment":
            item = NUMPY.generic.item(o)
            # A long double has no Python number that is equal to it, and a time in nanoseconds is no int.
            if KINDS.get(id(type(item))) != "scalar" and not (kind == "moment" and type(item) is int):
                return encode(item, depth + 1)
        raise NotComparable("a kind of object that is not compared")

    return encode(value, 0)


MRO = type.__dict__["__mro__"].__get__
TYPE_NAME = type.__dict__["__name__"].__get__
FRACTION_TOP, FRACTION_BOTTOM = fractions.Fraction._numerator.__get__, fractions.Fraction._denominator.__get__
RANGE_START, RANGE_STOP, RANGE_STEP = range.start.__get__, range.stop.__get__, range.step.__get__
DATETIME_ZONE, TIME_ZONE = datetime.datetime.tzinfo.__get__, datetime.time.tzinfo.__get__
NUMPY = ARRAY_SIZE = ARRAY_SHAPE = ARRAY_TYPE = None    # see load_numpy
KINDS = {id(kind): name for kind, name in [
    (bool, "int"), (int, "int"), (str, "str"), (float, "float"), (type(None), "none"), (list, "list"), (tuple, "tuple"),
    (dict, "dict"), (set, "set"), (frozenset, "frozenset"), (deque, "deque"), (bytes, "bytes"),
    (bytearray, "bytearray"), (complex, "complex"), (fractions.Fraction, "fraction"), (decimal.Decimal, "decimal"),
    (range, "range"), (datetime.datetime, "datetime"), (datetime.date, "date"), (datetime.time, "time"),
    (datetime.timedelta, "timedelta")]}
NONE = canonical(None)


# ---------------------------------------------------------------------------------------------------------------------
# The layers, through the C library

LIBC = ctypes.CDLL(None, use_errno=True)
X86 = os.uname().machine == "x86_64"
NEW = {"user": 0x10000000, "net": 0x40000000, "pid": 0x20000000, "mount": 0x20000, "ipc": 0x8000000, "uts": 0x4000000}


def c(name, *arguments):
    """Call a function of the C library, or a system call by number; raise OSError where it fails."""
    if isinstance(name, int):
        function, arguments = LIBC.syscall, (name, *arguments)
    else:
        function = getattr(LIBC, name)
    result = function(*(ctypes.c_long(a) if isinstance(a, int) else a for a in arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")
    return result


def prctl(option, value=0):
    return c("prctl", option, value, 0, 0, 0)


def new_user_namespace(flags, proc_self):
    """Enter new namespaces, the user's among them, in which this user keeps its number and no other exists."""
    uid, gid = os.getuid(), os.getgid()
    c("unshare", flags | NEW["user"])
    for name, line in ("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1"):
        fd = os.open(name, os.O_WRONLY, dir_fd=proc_self)
        os.write(fd, line.encode())
        os.close(fd)


def enter_namespaces():
    """New namespaces, and a new process as the first in them; returns the names of those entered.

    As root, without the user's: the root must be built with root's own rights. leave_privileges() adds it.
    """
    def enter():
        proc_self = os.open("/proc/self", os.O_RDONLY | os.O_DIRECTORY)
        if os.getuid() == 0:
            c("unshare", sum(NEW.values()) - NEW["user"])
        else:
            new_user_namespace(sum(NEW.values()), proc_self)
        os.close(proc_self)

    attempt = os.fork()    # tried on a copy first: some systems let it begin and then forbid the rest
    if attempt == 0:
        code = 1
        try:
            enter()
            code = 0
        finally:
            os._exit(code)
    if os.waitpid(attempt, 0)[1]:
        return []
    names = sorted(set(NEW) - {"user"} if os.getuid() == 0 else NEW)
    enter()
    zygote = os.fork()
    if zygote:    # this process has entered every namespace but the pid's; it stays only to be its parent
        os.waitpid(zygote, 0)
        os._exit(0)
    return names


def library_paths(numpy):
    """What a child may read: the standard library (all that is on a bare interpreter's path) and, when asked, numpy."""
    library = [path for path in sys.path if os.path.isdir(path)]
    library = [path for path in library if not any(path.startswith(f"{other}/") for other in library)]
    others = ["/usr/share/zoneinfo"] + ([f"{numpy}/numpy", f"{numpy}/numpy.libs"] if numpy else [])
    return library + [path for path in others if os.path.isdir(path)]


def pivot_root(paths):
    """Make a root that holds only `paths`, under their own names, read-only; installed packages are covered."""
    bind, rec, private = 0x1000, 0x4000, 0x40000
    root = b"/proc"    # a folder that exists everywhere, and under which none of the paths lies
    c("mount", None, b"/", None, rec | private, None)
    c("mount", b"tmpfs", root, b"tmpfs", 0, b"size=1m,mode=755")
    for path in map(os.fsencode, paths):
        os.makedirs(root + path, exist_ok=True)
        c("mount", path, root + path, None, bind | rec, None)
        for packages in (path + b"/site-packages", path + b"/dist-packages"):
            if os.path.isdir(packages):
                os.makedirs(root + b"/empty" + packages)
                c("mount", root + b"/empty" + packages, root + packages, None, bind, None)
    read_only = struct.pack("QQQQ", 1 | 2 | 4, 0, 0, 0)    # no writing, no set-uid, no devices
    c(442, -100, root, 0x8000, read_only, len(read_only))    # mount_setattr, with all that is mounted below
    os.chdir(root)
    c(155 if X86 else 41, b".", b".")    # pivot_root: the old root now lies on top of the new one
    c("umount2", b".", 2)
    os.chdir("/")


def nobody_can_import():
    """May user nobody read the library? Where not, its programs' imports would fail, and score as wrong."""
    try:
        os.setegid(NOBODY)
        os.seteuid(NOBODY)
        readable = os.access(os.__file__, os.R_OK, effective_ids=True)
        os.seteuid(0)
        os.setegid(0)
        return readable
    except OSError:    # no such user here
        return False


def leave_privileges(proc_self, namespaces, landlock):
    """Become nobody where we are root, in a user namespace of its own; drop every capability, for good.

    Where no root could be built and nobody cannot read the interpreter (it lies in root's home, say), we stay root
    without capabilities, if Landlock is there to keep that root from reading anything else.
    """
    if os.getuid() == 0 and not nobody_can_import():
        if not landlock:
            raise OSError(f"user nobody cannot read the interpreter's library ({os.path.dirname(os.__file__)}), and "
                          "there is neither a pivoted root nor Landlock; use an interpreter that everyone can read")
    elif os.getuid() == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        if namespaces:
            try:
                prctl(4, 1)    # PR_SET_DUMPABLE: or our own files in /proc would be root's
                new_user_namespace(0, proc_self)
                namespaces.append("user")
            except OSError:
                pass
    for capability in range(64):
        LIBC.prctl(24, capability, 0, 0, 0)    # PR_CAPBSET_DROP; fails where there is nothing to drop
    c("capset", struct.pack("Ii", 0x20080522, 0), bytes(24))
    prctl(4, 0)    # not dumpable: other processes of this user cannot look in
    c("prctl", 38, 1, 0, 0, 0)    # PR_SET_NO_NEW_PRIVS


def landlock_rules(paths, pivoted):
    """Rules that allow reading under `paths` and nothing else: (Landlock's version, 0 for none; their descriptor)."""
    version = LIBC.syscall(444, None, ctypes.c_long(0), 1)
    if version < 1:
        return 0, None
    read_file, read_folder = 1 << 2, 1 << 3
    handled = (1 << 13) - 1 | (version >= 2) << 13 | (version >= 3) << 14 | (version >= 5) << 15
    rules = struct.pack("QQQ", handled, 3 if version >= 4 else 0, 3 if version >= 6 else 0)    # files, TCP, signals
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    ruleset = c(444, rules[:size], size, 0)

    def allow(path, rights):
        fd = os.open(path, os.O_PATH)
        c(445, ruleset, 1, struct.pack("=Qi", rights, fd), 0)
        os.close(fd)

    for path in ["/"] if pivoted else paths:
        allow(path, read_folder)
        for entry in os.scandir(path):    # one by one: installed packages may lie inside the library
            if entry.is_dir():
                if entry.name not in ("site-packages", "dist-packages") or pivoted:
                    allow(entry.path, read_file | read_folder)
            elif entry.is_file():
                allow(entry.path, read_file)
    return version, ruleset


# Numbers of the allowed system calls on x86-64 and arm64 (None: does not exist there).
ALLOWED = {
    "read": (0, 63), "write": (1, 64), "close": (3, 57), "stat": (4, None), "fstat": (5, 80), "lstat": (6, None),
    "lseek": (8, 62), "mmap": (9, 222), "mprotect": (10, 226), "munmap": (11, 215), "brk": (12, 214),
    "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "pread64": (17, 67),
    "readv": (19, 65), "writev": (20, 66), "access": (21, None), "sched_yield": (24, 124), "mremap": (25, 216),
    "madvise": (28, 233), "pause": (34, None), "nanosleep": (35, 101), "getitimer": (36, 102), "alarm": (37, None),
    "setitimer": (38, 103), "getpid": (39, 172), "exit": (60, 93), "uname": (63, 160), "getcwd": (79, 17),
    "readlink": (89, None), "gettimeofday": (96, 169), "getrlimit": (97, 163), "getrusage": (98, 165),
    "sysinfo": (99, 179), "times": (100, 153), "getuid": (102, 174), "getgid": (104, 176), "geteuid": (107, 175),
    "getegid": (108, 177), "getppid": (110, 173), "sigaltstack": (131, 132), "gettid": (186, 178),
    "time": (201, None), "futex": (202, 98), "sched_getaffinity": (204, 123), "getdents64": (217, 61),
    "restart_syscall": (219, 128), "clock_gettime": (228, 113), "clock_getres": (229, 114),
    "clock_nanosleep": (230, 115), "exit_group": (231, 94), "newfstatat": (262, 79), "readlinkat": (267, 78),
    "faccessat": (269, 48), "getrandom": (318, 278), "statx": (332, 291), "faccessat2": (439, 439)}


def seccomp_filter():
    """The allow-list as a program of the kernel's packet filter, in a struct sock_fprog."""
    load, equal, at_least, any_bit, leave = 0x20, 0x15, 0x35, 0x45, 0x06
    allow, eperm, kill = 0x7FFF0000, 0x00050001, 0x80000000
    number, arch = 0, 4    # offsets in struct seccomp_data; argument i stands at 16 + 8 i, its upper half 4 further

    # An instruction: what to do, how many to skip if it holds and if not, a constant.
    program = [(load, 0, 0, arch), (equal, 1, 0, 0xC000003E if X86 else 0xC00000B7), (leave, 0, 0, kill)]
    program += [(load, 0, 0, number)]
    if X86:
        program += [(at_least, 0, 1, 0x40000000), (leave, 0, 0, kill)]    # x32
    for x86, arm in ALLOWED.values():
        if (x86 if X86 else arm) is not None:
            program += [(equal, 0, 1, x86 if X86 else arm), (leave, 0, 0, allow)]

    def allow_if(numbers, checks):    # checks: (test, argument's offset, constant, must the test fail?)
        if (numbers[0] if X86 else numbers[1]) is None:
            return
        body = []
        for test, offset, constant, must_fail in checks:
            body += [(load, 0, 0, offset), (test, 0, 1, constant) if must_fail else (test, 1, 0, constant)]
            body += [(leave, 0, 0, eperm)]
        program.append((equal, 0, len(body) + 1, numbers[0] if X86 else numbers[1]))
        program.extend(body + [(leave, 0, 0, allow)])

    writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | 0o20000000    # the last: O_TMPFILE
    allow_if((2, None), [(any_bit, 16 + 8, writing, True)])    # open(path, flags)
    allow_if((257, 56), [(any_bit, 16 + 16, writing, True)])    # openat(folder, path, flags)
    own_and_asking = [(equal, 16, 0, False), (equal, 32, 0, False), (equal, 36, 0, False)]
    allow_if((302, 261), own_and_asking)    # prlimit64(0, resource, no new limit)
    allow_if((72, 25), [(at_least, 16 + 8, 4, True)])    # fcntl: no owners, no signals, no sizes of pipes
    program.append((leave, 0, 0, eperm))
    code = b"".join(struct.pack("HBBI", *instruction) for instruction in program)
    fprog = ctypes.create_string_buffer(16)
    fprog.code = ctypes.create_string_buffer(code)    # kept alive with what points to it
    struct.pack_into("HP", fprog, 0, len(program), ctypes.addressof(fprog.code))
    return fprog


# ---------------------------------------------------------------------------------------------------------------------
# The zygote and its children

def wall_in(out_fd, limits, fprog):
    """The child's own layers; after this it can compute, read the library and write to out_fd."""
    prctl(1, signal.SIGKILL)    # PR_SET_PDEATHSIG: die with the zygote
    os.closerange(3, out_fd)
    os.closerange(out_fd + 1, 1024)
    for limit, most in limits:
        resource.setrlimit(limit, (most, most + (limit == resource.RLIMIT_CPU)))    # SIGXCPU, then SIGKILL
    if fprog:
        c("prctl", 22, 2, fprog, 0, 0)    # PR_SET_SECCOMP, by a filter


def run_child(job, out_fd):
    """Run a program's calls and write a frame for each: each in a fresh namespace, with the same random seed."""
    mode, seed, tuples_as_lists = job["mode"], job["seed"], job["tuples_as_lists"]
    program, loaded, collect = None, False, gc.collect
    restore, plain_builtins = vars(builtins).update, dict(vars(builtins))

    def send(kind, payload=b"", write=os.write):
        data = memoryview(FRAME.pack(kind, len(payload)) + payload)
        while data:
            data = data[write(out_fd, data):]

    for call in job["calls"]:
        names, value, raised = {}, None, None
        try:
            sys.setrecursionlimit(1000)
            random.seed(seed)
            if NUMPY:
                NUMPY.random.seed(seed)
            program = program or compile(job["program"], "<program>", "exec", dont_inherit=True)
            if mode == "module":
                module = sys.modules["solution"] = types.ModuleType("solution")    # dataclasses look it up there
                scope = names = vars(module)
            else:
                scope = {}    # names are local to the exec: functions of the program do not see each other
            exec(program, scope, names)
            if not loaded:
                send(LOADED)
                loaded = True
            value = eval(call, scope, names)
        except BaseException as error:    # SystemExit and KeyboardInterrupt too: data, like any other
            raised = error
        restore(plain_builtins)
        if not loaded:
            send(LOADED)
            loaded = True
        sys.setrecursionlimit(10_000)
        if raised is None:
            send(*result_frame(value, tuples_as_lists))
        elif type(raised) is MemoryError:
            raise MemoryError    # ends this child, and what it hoards with it: the next call runs in a new one
        else:
            send(ERROR, TYPE_NAME(type(raised)).encode("utf-8", "replace")[:64])
        value = raised = None
        names.clear()
        collect()    # its functions and classes hold on to each other


def result_frame(value, tuples_as_lists):
    try:
        return VALUE, canonical(value, tuples_as_lists)
    except MemoryError:
        raise
    except Exception:    # NotComparable, and what liars make the built-in methods raise
        return ODD, b""


def fork_child(job_fd, out_fd, control, limits, fprog):
    """Fork; the child runs its job and never returns."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        control.close()
        with open(job_fd, "rb") as job_file:
            job = json.load(job_file)
        wall_in(out_fd, limits, fprog)
        gc.enable()
        run_child(job, out_fd)
        code = 0
    except MemoryError:
        code = EXIT_MEMORY
    finally:
        os._exit(code)


def has_seccomp(fprog):
    """Does a child with the filter on still get a socket? (Tried, not believed.)"""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            wall_in(3, [], fprog)
            try:
                socket.socket()
            except PermissionError:
                code = 0
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1] == 0


def load_numpy(folder):
    """Import numpy from the folder that holds it, which a bare interpreter does not look into."""
    global NUMPY, ARRAY_SIZE, ARRAY_SHAPE, ARRAY_TYPE
    sys.path.append(folder)
    NUMPY = importlib.import_module("numpy")
    importlib.import_module("numpy.random")
    ARRAY_SIZE, ARRAY_SHAPE = NUMPY.ndarray.size.__get__, NUMPY.ndarray.shape.__get__
    ARRAY_TYPE = NUMPY.ndarray.dtype.__get__
    KINDS.update({id(NUMPY.ndarray): "ndarray", id(NUMPY.generic): "scalar", id(NUMPY.datetime64): "moment",
                  id(NUMPY.timedelta64): "moment", id(importlib.import_module("numpy.ma").MaskedArray): "masked"})


def prepare(options):
    """Make this process a zygote: import, wall in. Returns what is on, the limits of a child, and its filter."""
    without = options["without"]
    paths = library_paths(options["numpy"])
    namespaces, pivoted = [] if "namespaces" in without else enter_namespaces(), False
    for name in PRELOADED:
        importlib.import_module(name)
    if options["numpy"]:
        load_numpy(options["numpy"])
    with open("/proc/self/statm") as statm:    # the limit on memory is what a program may add to this
        own_memory = int(statm.read().split()[0]) * resource.getpagesize()
    proc_self = os.open("/proc/self", os.O_RDONLY | os.O_DIRECTORY)
    if namespaces:
        try:
            pivot_root(paths)
            pivoted = True
        except OSError:
            pass
    landlock, ruleset = (0, None) if "landlock" in without else landlock_rules(paths, pivoted)
    leave_privileges(proc_self, namespaces, landlock)
    os.close(proc_self)
    if landlock:
        c(446, ruleset, 0)    # landlock_restrict_self
        os.close(ruleset)
    prctl(1, signal.SIGKILL)    # PR_SET_PDEATHSIG: die with the process that holds our namespaces
    fprog = None if "seccomp" in without else seccomp_filter()
    seccomp = fprog is not None and has_seccomp(fprog)
    layers = {"namespaces": sorted(namespaces), "root": "pivoted" if pivoted else "shared", "uid": os.getuid(),
              "landlock": landlock, "seccomp": seccomp, "limits": True}
    limits = [(resource.RLIMIT_AS, own_memory + options["memory_bytes"]), (resource.RLIMIT_CPU, options["cpu_seconds"]),
              (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_NOFILE, 64), (resource.RLIMIT_NPROC, 0),
              (resource.RLIMIT_CORE, 0), (resource.RLIMIT_MEMLOCK, 0)]
    os.environ.clear()
    sys.argv[:] = [""]
    return layers, limits, fprog if seccomp else None


def zygote():
    """Prepare and report; then fork a child for every pair of descriptors that comes in, one at a time."""
    control = socket.socket(fileno=os.dup(0))
    os.dup2(1, 0)    # standard input: /dev/null, like the others
    try:
        layers, limits, fprog = prepare(json.loads(control.recv(1 << 16)))
    except Exception as error:
        control.send(json.dumps({"error": str(error)}).encode())
        os._exit(1)
    control.send(json.dumps(layers).encode())
    gc.collect()
    gc.disable()
    gc.freeze()    # a garbage collection in a child would copy every page of what is here

    poller = select.poll()
    poller.register(control, 0)    # only: the parent is gone
    while True:
        message, fds, _, _ = socket.recv_fds(control, 1, 2)
        if not message:
            os._exit(0)
        pid = fork_child(*fds, control, limits, fprog)
        for fd in fds:
            os.close(fd)
        pidfd = os.pidfd_open(pid)
        socket.send_fds(control, [b"P"], [pidfd])
        poller.register(pidfd, select.POLLIN)
        if any(fd != pidfd for fd, _ in poller.poll()):
            os.kill(pid, signal.SIGKILL)
            os._exit(0)
        poller.unregister(pidfd)
        os.close(pidfd)
        control.send(struct.pack("!i", os.waitpid(pid, 0)[1]))


if __name__ == "__main__" and sys.argv[1:] == ["--zygote"]:
    zygote()    # never returns, and so never imports what only the parent needs: a small zygote forks faster


# ---------------------------------------------------------------------------------------------------------------------
# The parent

import argparse
import hashlib
import queue
import subprocess
import threading
import time
from collections import Counter, OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

KEPT_REFERENCES = 20_000    # tasks whose reference results (32 bytes a call) are kept
CHANCE = {"timeout", "killed: silent", "refused"}    # what a busy machine can do to a program


class Outcome(NamedTuple):
    status: str                     # "ok", "error: TypeError", "timeout", "not comparable", "refused", ...
    value: bytes | None = None      # the canonical bytes, where the status is "ok"


class ZygoteDied(Exception):
    pass


class Zygote:
    """The parent's end of one zygote. Used by one thread at a time; started anew after it died."""

    def __init__(self, options, hash_seed):
        self.options, self.hash_seed, self.process = options, hash_seed, None

    def launch(self):
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        python = getattr(sys, "_base_executable", None) or sys.executable    # not the virtual environment's
        environment = {"PYTHONHASHSEED": str(self.hash_seed), "OPENBLAS_NUM_THREADS": "1"}
        with theirs:
            self.process = subprocess.Popen(
                [python, "-s", "-S", "-P", "-B", os.path.abspath(__file__), "--zygote"], env=environment, cwd="/",
                stdin=theirs, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.control.settimeout(60)
        self.control.send(json.dumps(self.options).encode())

    def greet(self):
        """Wait until it is ready; returns its layers."""
        reply = json.loads(self.control.recv(1 << 16) or b'{"error": "its process ended"}')
        if "error" in reply:
            self.close()
            raise ZygoteDied(reply["error"])
        self.control.settimeout(30)
        return reply

    def close(self):
        if self.process:
            self.control.close()    # it ends by itself when this is closed
            try:
                self.process.wait(2)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            self.process = None

    def run(self, job, calls, call_timeout, deadline):
        """Have a child run a job of so many calls: (frames, did it load?, how it ended: "done" or a status)."""
        try:
            with os.fdopen(os.memfd_create("job"), "wb", buffering=0) as job_file:
                job_file.write(job)
                job_file.seek(0)
                results, theirs = os.pipe()
                try:
                    socket.send_fds(self.control, [b"J"], [job_file.fileno(), theirs])
                except OSError:
                    os.close(results)
                    raise
                finally:
                    os.close(theirs)    # the child's copy is now the only one: when the child ends, so does the pipe
            try:
                pidfds = socket.recv_fds(self.control, 1, 1)[1]
                if not pidfds:
                    raise ZygoteDied("it closed its socket")
                try:
                    frames, loaded, ended = read_frames(results, calls, call_timeout, deadline)
                    left = max(0.01, min(call_timeout, deadline - time.monotonic()))
                    if stop(pidfds[0], 1000 * left if ended == "gone" else 0) and ended == "gone":
                        ended = "killed: silent"    # it closed its results and stayed
                finally:
                    os.close(pidfds[0])
            finally:
                os.close(results)
            status = self.control.recv(4)
            if len(status) != 4:
                raise ZygoteDied("it closed its socket")
        except OSError as error:
            raise ZygoteDied(str(error)) from error
        return frames, loaded, how_it_died(struct.unpack("!i", status)[0]) if ended == "gone" else ended


def stop(pidfd, wait_ms):
    """Kill a child, after some milliseconds in which it may end by itself; says whether that was needed."""
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    if wait_ms and poller.poll(wait_ms):
        return False
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def read_frames(results, calls, call_timeout, deadline):
    """Read until every call is answered ("done"), the child is "gone", time is up, or what it writes makes no sense."""
    frames, loaded, buffer = [], False, bytearray()
    poller = select.poll()
    poller.register(results, select.POLLIN)
    call_deadline = time.monotonic() + call_timeout
    while True:
        while len(buffer) >= FRAME.size:
            kind, length = FRAME.unpack_from(buffer)
            if length > MAX_RESULT or kind not in (VALUE, ERROR, ODD) and (kind != LOADED or loaded or frames):
                return frames, loaded, "not comparable"
            if len(buffer) < FRAME.size + length:
                break
            if kind == LOADED:
                loaded = True
            else:
                frames.append((kind, bytes(buffer[FRAME.size:FRAME.size + length])))
                call_deadline = time.monotonic() + call_timeout
            del buffer[:FRAME.size + length]
            if len(frames) == calls:
                return frames, loaded, "done"
        left = min(call_deadline, deadline) - time.monotonic()
        if left <= 0 or not poller.poll(math.ceil(left * 1000)):
            return frames, loaded, "timeout"
        chunk = os.read(results, 1 << 16)
        if not chunk:
            return frames, loaded, "gone"
        buffer += chunk


def how_it_died(status):
    """The status of the call under way when a child ended without being told to."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
        return {"SIGKILL": "killed: memory", "SIGXCPU": "timeout"}.get(name, f"killed: {name}")
    return "killed: memory" if os.WEXITSTATUS(status) == EXIT_MEMORY else "killed: exit"


def outcome_of(kind, payload):
    """What a frame says. An error's name is the only word of the child's that is shown to anyone."""
    if kind == ERROR:
        name = payload.decode("utf-8", "replace")
        return Outcome(f"error: {name}" if name.isascii() and name.isidentifier() else "error: unnamed")
    return Outcome("ok", payload) if kind == VALUE else Outcome("not comparable")


def digest(value):
    return hashlib.sha256(value).digest()


def verdict(reference, outcome, mode):
    """The status of one test, from the reference's digest (or its status, if not ok) and the candidate's outcome."""
    if isinstance(reference, str):
        return f"reference {reference}"
    if outcome.status != "ok":
        return outcome.status
    if mode == "released" and reference == digest(NONE):
        return "wrong"
    return "passed" if digest(outcome.value) == reference else "wrong"


class Sandbox:
    """Runs programs in `workers` zygotes. Threads may share one; what a program does is data, never an exception.

    memory_mb         what a program may use beside the interpreter itself
    call_timeout      seconds for one call, with the running of the program in front of it
    program_timeout   seconds for all calls of one program
    mode              "module" or "released", see above; run, score and score_many take it too
    numpy             True: programs can import numpy, and its arrays and scalars can be compared
    unsafe            True: start even where seccomp cannot be had
    tuples_as_lists   True: (1, 2) equals [1, 2]
    without           layers to leave out, of "namespaces", "landlock", "seccomp": to test and to price them
    """

    def __init__(self, workers=2, memory_mb=256, call_timeout=1.0, program_timeout=5.0, mode="module", numpy=False,
                 unsafe=False, tuples_as_lists=False, without=()):
        if sys.platform != "linux":
            die("the sandbox needs Linux, whose kernel its layers are made of; run it there, or in a virtual machine")
        if os.uname().machine not in ("x86_64", "aarch64"):
            die(f"the sandbox knows the system calls of x86_64 and aarch64, not of {os.uname().machine}")
        if mode not in ("module", "released"):
            die(f"the sandbox's mode is module or released, not {mode!r}")
        unknown = set(without) - {"namespaces", "landlock", "seccomp"}
        if unknown:
            die(f"layers that can be left out are namespaces, landlock and seccomp, not {', '.join(sorted(unknown))}")
        if numpy and not find_spec("numpy"):
            die("the sandbox was asked for numpy, which is not installed; install it with: pip install numpy")
        self.workers, self.mode, self.tuples_as_lists = workers, mode, tuples_as_lists
        self.call_timeout, self.program_timeout = call_timeout, program_timeout
        self.options = {"memory_bytes": memory_mb << 20, "cpu_seconds": math.ceil(program_timeout) + 1,
                        "numpy": str(Path(find_spec("numpy").origin).parents[1]) if numpy else None,
                        "without": list(without)}
        self.lock, self.zygotes, self.pools, self.references = threading.Lock(), [], {}, OrderedDict()
        self._pool(0)
        try:
            for zygote in self.zygotes:
                zygote.launch()    # all at once
            self.layers, *others = [zygote.greet() for zygote in self.zygotes]
            if any(layers != self.layers for layers in others):
                raise ZygoteDied(f"its workers do not have the same layers: {[self.layers, *others]}")
        except (ZygoteDied, OSError) as error:
            self.close()
            die(f"the sandbox could not start: {error}")
        if not self.layers["seccomp"] and not unsafe:
            self.close()
            die("seccomp, which keeps programs from the kernel, cannot be had; unsafe=True (--unsafe) runs without it")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        for zygote in self.zygotes:
            zygote.close()

    def _pool(self, hash_seed):
        """The free zygotes of a hash seed; those of other seeds than 0 start when first used."""
        with self.lock:
            if hash_seed not in self.pools:
                self.pools[hash_seed] = queue.SimpleQueue()
                for _ in range(self.workers):
                    self.zygotes.append(Zygote(self.options, hash_seed))
                    self.pools[hash_seed].put(self.zygotes[-1])
            return self.pools[hash_seed]

    def run(self, program, calls, seed=0, mode=None, hash_seed=0):
        """Run each call (an expression) in a fresh namespace of the program; one Outcome a call, in their order."""
        calls = list(calls)
        texts = [program, *calls]
        if not all(isinstance(text, str) for text in texts) or sum(map(len, texts)) > MAX_PROGRAM:
            return [Outcome("refused")] * len(calls)
        pool = self._pool(hash_seed)
        zygote = pool.get()
        try:
            return self._run(zygote, program, calls, seed, mode or self.mode)
        except BaseException:
            zygote.close()    # interrupted, by Ctrl-C say: its next answer would be to this question
            raise
        finally:
            pool.put(zygote)

    def _run(self, zygote, program, calls, seed, mode):
        outcomes, deaths, deadline = [], 0, None
        while len(outcomes) < len(calls):    # once; again after a call that cost the child its life
            rest = calls[len(outcomes):]
            job = json.dumps({"program": program, "calls": rest, "seed": seed, "mode": mode,
                              "tuples_as_lists": self.tuples_as_lists}).encode()
            try:
                if not zygote.process:
                    zygote.launch()
                    if zygote.greet() != self.layers:
                        raise ZygoteDied("it has other layers than those that the records name")
                    deadline = None    # the program's time starts again with its zygote
                deadline = deadline or time.monotonic() + self.program_timeout
                if time.monotonic() >= deadline:
                    return outcomes + [Outcome("timeout")] * len(rest)
                frames, loaded, ended = zygote.run(job, len(rest), self.call_timeout, deadline)
            except (ZygoteDied, OSError):
                zygote.close()
                deaths += 1
                if deaths == 2:
                    return outcomes + [Outcome("refused")] * len(rest)
                continue
            outcomes += [outcome_of(*frame) for frame in frames]
            if ended != "done":    # where not even the program's own text came to an end, no call will fare better
                outcomes += [Outcome(ended)] * (1 if loaded else len(rest) - len(frames))
        return outcomes

    def score(self, task, code, mode=None):
        """{label: status} of a candidate's code on the task's tests; "passed": it returns what the reference does."""
        calls, mode = list(task["test_cases"].values()), mode or self.mode
        references = self._reference(task["ground_truth"], calls, mode)
        outcomes = self.run(code, calls, mode=mode)
        return {label: verdict(reference, outcome, mode)
                for label, reference, outcome in zip(task["test_cases"], references, outcomes)}

    def _reference(self, program, calls, mode):
        """The reference's results, as verdict() takes them; run once per task, however many threads ask."""
        key = digest(json.dumps([program, calls, mode]).encode())
        with self.lock:
            known = self.references.get(key)
            if known is None:
                mine = self.references[key] = Future()    # whoever asks from here on waits for it
                if len(self.references) > KEPT_REFERENCES:
                    self.references.popitem(last=False)
        if isinstance(known, Future):
            return known.result()
        if known is None:
            try:
                outcomes = self.run(program, calls, mode=mode)
                if any(outcome.status in CHANCE for outcome in outcomes):    # remembered only if it happens twice
                    outcomes = self.run(program, calls, mode=mode)
                known = [digest(outcome.value) if outcome.status == "ok" else outcome.status for outcome in outcomes]
                mine.set_result(known)
            except BaseException as error:
                mine.set_exception(error)
                raise
            with self.lock:
                self.references[key] = known    # smaller than the Future
        return known

    def score_many(self, items, mode=None):
        """Yield (key, statuses) for each (key, task, code) of an iterable, in order, reading only a little ahead."""
        with ThreadPoolExecutor(self.workers) as threads:
            ahead = deque()
            try:
                for key, task, code in items:
                    ahead.append((key, threads.submit(self.score, task, code, mode)))
                    if len(ahead) > 64 * self.workers:
                        key, future = ahead.popleft()
                        yield key, future.result()
                while ahead:
                    key, future = ahead.popleft()
                    yield key, future.result()
            finally:
                for _, future in ahead:
                    future.cancel()

    def check_reference(self, task):
        """{label: "ok" | "differs" | "none" | "error: ..." | ...}: the reference run twice, with other seeds.

        Both the random and the hash seed differ: what rests on chance, on the order of a set or on a fine clock shows
        (the date does not).
        """
        calls = list(task["test_cases"].values())
        first = self.run(task["ground_truth"], calls, seed=0)
        second = self.run(task["ground_truth"], calls, seed=1, hash_seed=1)
        checks = {}
        for label, one, two in zip(task["test_cases"], first, second):
            if one.status != "ok":
                checks[label] = one.status
            elif one != two:
                checks[label] = "differs"
            else:
                checks[label] = "none" if one.value == NONE else "ok"
        return checks


# ---------------------------------------------------------------------------------------------------------------------
# The record kit: how every stage of this project refuses mistakes, reads records and writes them

ANSWER_MARK, OUTPUT_MARK = "I WANT TO ANSWER:", "OUTPUT:"

MESSAGE = {"role": str, "content": str, "output?": str, "output_ids?": [(0, 1 << 31)]}
TASK = {"task_id?": str | int, "domain?": str, "problem_description?": str, "ground_truth?": str,
        "test_cases?": {str: str}, "facts?": [{"keywords": [str], "question": str, "reply": str}]}
DIALOGUE = {"task_id?": str | int, "sample?": int, "domain?": str, "task?": TASK, "system?": str,
            "dialogue_history": [MESSAGE], "finish?": str, "tests?": {str: str}, "advantages?": list,
            "cosine?": {"page": int | float, "centre": int | float}}
SCHEMA = {  # kind of record: (what writes it, what names a record, its shape)
    "task": ("generate_tasks.py", ("task_id",), TASK | {"problem_description": str, "ground_truth": str}),
    "demonstration": ("generate_tasks.py --demonstrations", ("task_id", "sample"), DIALOGUE),
    "trajectory": ("rollout.py", ("task_id", "sample"), DIALOGUE | {"task": TASK | {"ground_truth": str},
                                                                   "answer": str | None}),
    "scored": ("evaluate.py", ("task_id", "sample"), DIALOGUE | {"reward": (0.0, 1.0, None)}),
    "candidates": ("rollout.py --candidates 16", ("task_id", "sample", "turn"), {
        "task_id?": str | int, "sample?": int, "turn?": int, "task?": TASK, "prompt": [MESSAGE],
        "candidates": [{"output?": str, "output_ids?": [(0, 1 << 31)]}]}),
    "pair": ("train_policy.py", ("task_id", "sample", "turn"), {
        "task_id?": str | int, "sample?": int, "turn?": int, "prompt": [MESSAGE], "chosen": [MESSAGE],
        "rejected": [MESSAGE], "chosen_ids?": [(0, 1 << 31)], "rejected_ids?": [(0, 1 << 31)]}),
}


def die(message, code=2):
    """Stop with one sentence on stderr; exit code 2 is a user's mistake. Under torchrun every rank says its own."""
    rank = int(os.environ.get("RANK", 0))
    sys.stderr.write(f"{Path(sys.argv[0]).name}: {f'rank {rank}: ' if rank else ''}{message}\n")
    sys.stderr.flush()
    os._exit(code) if "RANK" in os.environ else sys.exit(code)    # the other ranks may be waiting for this one


def number(kind=float, least=None, above=None, most=math.inf):
    """An argparse type: a number of this kind in this range (NaN lies in none)."""
    def parse(text):
        value = kind(text)
        if not (value <= most and (least is None or value >= least) and (above is None or value > above)):
            limits = [f"at least {least}"] * (least is not None) + [f"above {above}"] * (above is not None)
            limits += [f"at most {most}"] * (most < math.inf)
            raise argparse.ArgumentTypeError(f"must be {' and '.join(limits) or 'a number'}, found {text}")
        return value
    parse.__name__ = "number" if kind is float else "whole number"    # argparse: "invalid whole number value: 'x'"
    return parse


def fault(value, shape, name="it"):
    """What keeps a value from having a shape, as one clause that names the place, or None.

    A shape is a type (`str`, `int | None`); a range (low, high), whole numbers where both ends are, or also null with
    (low, high, None); [shape], a list of such values; {str: shape}, an object of such values; or {"key": shape, ...},
    an object with these keys, of which "key?" may be missing or null. Other keys may hold anything.
    """
    if isinstance(shape, dict) and isinstance(value, dict):
        if str in shape:
            return next(filter(None, (fault(v, shape[str], f"{name}[{k!r}]") for k, v in value.items())), None)
        for key, inner in shape.items():
            plain = key.rstrip("?")
            if plain not in value and plain == key:
                return f"{name} lacks the key {plain!r}, found {', '.join(sorted(value)[:12]) or 'none'}"
            if plain in value and (value[plain] is not None or plain == key):
                if problem := fault(value[plain], inner, plain if name == "it" else f"{name}.{plain}"):
                    return problem
        return None
    if isinstance(shape, list) and isinstance(value, list):
        whole_numbers = isinstance(shape[0], tuple) and all(type(v) is int for v in value)
        if whole_numbers and (not value or shape[0][0] <= min(value) and max(value) <= shape[0][1]):
            return None    # token ids, which are many
        return next(filter(None, (fault(v, shape[0], f"{name}[{n}]") for n, v in enumerate(value))), None)
    if isinstance(shape, tuple):
        kinds = (int,) if type(shape[0]) is int else (int, float)
        if type(value) in kinds and shape[0] <= value <= shape[1] or value is None and None in shape:
            return None
        expected = f"a {'whole ' * (len(kinds) == 1)}number from {shape[0]} to {shape[1]}"
    elif not isinstance(shape, (dict, list)) and isinstance(value, shape) and not isinstance(value, bool):
        return None
    else:
        plain = {dict: "an object", list: "a list", str: "text", int: "a whole number"}
        kind = shape if not isinstance(shape, (dict, list)) else type(shape)
        expected = plain.get(kind) or str(kind).replace("str", "text").replace("None", "null")
    return f"{name} must be {expected}, found {json.dumps(value)[:60]}"


def read(path, kind, domain=None, unique=False, each=None):
    """Yield the records of a JSON lines file, of a kind in SCHEMA, with what released files lack filled in.

    domain: what a record without one is about; a record that names another is refused. unique: whether no two records
    may have the same key. each: a function of the record whose result is yielded instead. Whatever is wrong in a line,
    a ValueError, LookupError or TypeError of `each` included, ends in one sentence that names the file and the line.
    """
    maker, key, shape = SCHEMA[kind]
    if not Path(path).is_file():
        die(f"{path}: no such file; run {maker} first, or name another")
    samples, lines, number = Counter(), {}, 0
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                try:
                    record = json.loads(line.decode("utf-8"))
                except RecursionError:
                    raise ValueError("nested too deeply for a record") from None
                except ValueError:
                    torn = "" if line.endswith(b"\n") else f" (the last line is torn: run {maker} again)"
                    found = line.strip()[:60].decode("utf-8", "replace")
                    raise ValueError(f"expected one JSON object, found {found!r}{torn}") from None
                if not isinstance(record, dict):
                    raise ValueError(f"expected a JSON object, found {type(record).__name__}")
                if problem := fault(record, shape):
                    raise ValueError(f"{problem}; {maker} writes such records")
                fill_in(record, kind, f"{Path(path).stem}-{number:05d}", domain, samples)
                if domain and record["domain"] != domain:
                    raise ValueError(f"found domain {record['domain']!r}, expected {domain!r} (--domain)")
                if unique:
                    name = tuple(record.get(part) for part in key)
                    if name in lines:
                        named = ", ".join(f"{part} {value}" for part, value in zip(key, name))
                        raise ValueError(f"{named} is there twice, first in line {lines[name]}")
                    lines[name] = number
                record = each(record) if each else record
            except (ValueError, LookupError, TypeError, AttributeError) as error:
                what = f"the key {error} is missing" if isinstance(error, KeyError) else error
                die(f"{path}, line {number}: {what}")
            yield record
    if not number:
        die(f"{path} holds no records; run {maker} first, or name another")


def fill_in(record, kind, name, domain, samples):
    """What records of the released files lack: task_id, sample (their samples carry no number), domain, finish."""
    if kind == "task":
        record["task_id"] = record.get("task_id") or name
        record["domain"] = record.get("domain") or domain
    elif kind in ("trajectory", "scored", "demonstration"):
        task = record.get("task") or {}
        content = json.dumps([task.get("problem_description"), task.get("ground_truth")])
        digest = hashlib.sha256(content.encode()).hexdigest()[:12]
        record["task_id"] = record.get("task_id") or task.get("task_id") or f"task-{digest}"
        record["domain"] = record.get("domain") or task.get("domain") or domain
        if record.get("sample") is None:
            record["sample"] = samples[record["task_id"]]
            samples[record["task_id"]] += 1
        if record.get("finish") is None:
            last = next((m for m in reversed(record["dialogue_history"]) if m["role"] == "assistant"), {})
            marked = ANSWER_MARK in (last.get("output") or last.get("content") or "")
            silent = "answer" in record and record["answer"] is None
            record["finish"] = "answered" if marked else "error: no answer" if silent else "max_turns"


def fingerprint(path):
    """A digest of a file, or of a model's folder (its weights, its configuration); a hub name or URL is its own."""
    if not Path(path).exists():
        return str(path)    # a Path would make http:/ of http://
    path, digest = Path(path), hashlib.sha256()
    files = [path] if path.is_file() else sorted(
        file for file in path.iterdir() if file.suffix in (".safetensors", ".json") and file.stem != "settings")
    for file in files:
        size = file.stat().st_size
        digest.update(f"{file.name if path.is_dir() else ''} {size}".encode())
        with open(file, "rb") as data:
            if path.is_file() or size <= 1 << 26:
                while part := data.read(1 << 20):
                    digest.update(part)
            else:    # of large weights both ends: training changes every tensor
                digest.update(data.read(1 << 20))
                data.seek(-(1 << 20), os.SEEK_END)
                digest.update(data.read())
    return digest.hexdigest()[:16]


def check_path(path, inputs=()):
    """Stop unless `path` is a file that can be written, or made, and none of the inputs (links followed)."""
    path = Path(path)
    for source in map(Path, inputs):
        if path.resolve() == source.resolve() or path.exists() and source.exists() and path.samefile(source):
            die(f"{path} is the input {source}, which is never written over; name another output")
    if path.exists() and not path.is_file():
        die(f"{path} is no file; name a file to write")
    folder = next(folder for folder in path.absolute().parents if folder.exists())
    probe = path if path.exists() else folder / f".{path.name}.{os.getpid()}"
    try:
        open(probe, "ab").close()
        probe == path or probe.unlink()
    except OSError as error:
        die(f"{path} cannot be written: {error.strerror}")


@contextmanager
def whole(path):
    """A name beside `path` to write to; the file takes the place of `path` once all is written, or goes away."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    try:
        yield part
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def check_settings(file, settings):
    """Stop if an output was begun with settings, or inputs, other than these. file: where it recorded its own."""
    try:
        before = dict(json.loads(Path(file).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        die(f"{file}: the settings that the output was made with are missing or damaged; use --overwrite or another "
            "--out")
    now = json.loads(json.dumps(settings))
    changed = [f"{name} was {before.get(name)!r}, now {now.get(name)!r}" for name in {**now, **before}
               if before.get(name) != now.get(name)]
    if changed:
        die(f"{file}: {'; '.join(changed)}; use --overwrite or another --out")


class Output:
    """A file of JSON lines that one command writes, however often it is stopped and started again.

    settings: what decides the content; inputs: {flag: path} of files and models that do. Both are recorded beside the
    file (as X.settings.json, inputs by their content), and a continued run must agree with them. `done` holds the keys
    of the records that are there already. Nothing is made or removed before the first record is written: a run that
    cannot start leaves everything as it was.
    """

    def __init__(self, path, settings, inputs, overwrite=False, key=("task_id", "sample")):
        self.path, self.key, self.overwrite, self.done, self.file = Path(path), key, overwrite, set(), None
        if self.path.suffix != ".jsonl":
            die(f"{path}: the name of the output must end in .jsonl")
        check_path(self.path, inputs.values())
        self.beside = self.path.with_suffix(".settings.json")
        self.settings = {**settings, **{f"content of {flag}": fingerprint(source) for flag, source in inputs.items()}}
        if self.path.exists() and not overwrite:
            check_settings(self.beside, self.settings)
            self.done = {self.key_of(record) for record in self.records()}

    def key_of(self, record):
        return tuple(record[part] for part in self.key)

    def records(self):
        """Yield the records that are there; a torn last line is cut off."""
        whole_lines = 0
        with open(self.path, "rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    break
                try:
                    record = json.loads(line)
                    self.key_of(record)
                except (ValueError, LookupError, TypeError):
                    die(f"{self.path}, line {number}: found {line[:60]!r}, expected a record with "
                        f"{', '.join(self.key)}; use --overwrite or another --out")
                whole_lines += len(line)
                yield record
        if whole_lines < self.path.stat().st_size:
            os.truncate(self.path, whole_lines)

    def write(self, record):
        """Append one record: a whole line, on its way to the disk when this returns."""
        if self.file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.overwrite:
                self.path.unlink(missing_ok=True)
            with whole(self.beside) as part:
                part.write_text(json.dumps(self.settings, indent=1) + "\n", encoding="utf-8")
            self.file = open(self.path, "ab", buffering=0)
        line = json.dumps(record, ensure_ascii=False) + "\n"
        line = line.encode("utf-8", "backslashreplace")    # half a surrogate pair stays \ud83d
        try:
            written = self.file.write(line)
            problem = None if written == len(line) else "the disk is full"
        except OSError as error:
            written, problem = 0, error.strerror
        if problem:
            os.truncate(self.path, os.path.getsize(self.path) - written)
            die(f"{self.path}: {problem}; all finished records are saved, make room and run the same command again", 1)
        self.done.add(self.key_of(record))

    def sort(self, place):
        """Put the finished file into the order of place(key), whole: records were written as they came."""
        order, offset = [], 0
        with open(self.path, "rb") as file:
            for line in file:
                order.append((place(*self.key_of(json.loads(line))), offset, len(line)))
                offset += len(line)
            if order != sorted(order):
                with whole(self.path) as part, open(part, "wb") as out:
                    for _, offset, length in sorted(order):
                        file.seek(offset)
                        out.write(file.read(length))


def parse_response(text):
    """A response as (content: what enters the dialogue, the answer or None).

    A thought may precede OUTPUT:, and the first I WANT TO ANSWER: begins the answer, in which nothing is cut any more.
    """
    before, mark, answer = text.partition(ANSWER_MARK)
    content = before.rsplit(OUTPUT_MARK, 1)[-1] + mark + answer
    return content.strip(), answer.strip() if mark else None


def read_jsonl(path, required=()):
    """Yield the records of a JSON-lines file; a bad line stops with file, number, what was found and expected."""
    path = Path(path)
    if not path.is_file():
        die(f"{path}: no such file; run the stage that writes it first")
    with open(path, "rb") as lines:
        for number, raw in enumerate(lines, 1):
            if not raw.strip():
                continue
            try:
                record = json.loads(raw)
            except RecursionError:
                die(f"{path}, line {number}: nested too deeply for a record")
            except ValueError:
                if not raw.endswith(b"\n"):
                    die(f"{path}, line {number}: the last line is torn (it ends in the middle of a record); "
                        "rerun the stage that writes it, which repairs it")
                die(f"{path}, line {number}: expected one JSON object, found {raw[:60].decode('utf-8', 'replace')!r}")
            if not isinstance(record, dict):
                die(f"{path}, line {number}: expected a JSON object, found {type(record).__name__}")
            missing = [key for key in required if key not in record]
            if missing:
                die(f"{path}, line {number}: expected the keys {', '.join(required)}; missing: {', '.join(missing)}")
            yield record


# ---------------------------------------------------------------------------------------------------------------------
# The command line

def parse_args():
    parser = argparse.ArgumentParser(description="Score answers (Python source) on their tasks' tests, in a sandbox.")
    # What to do
    parser.add_argument("--in", dest="source", metavar="FILE",
                        help="JSON lines with the keys task (ground_truth, test_cases) and answer (Python source as it "
                        "is, without Markdown fences; null for none)")
    parser.add_argument("--out", metavar="FILE",
                        help="the same records with reward, tests and sandbox; continued where it exists")
    parser.add_argument("--overwrite", action="store_true", help="start --out again instead of continuing it")
    parser.add_argument("--self-test", action="store_true",
                        help="print the layers, run hostile programs, an honest one after each")
    parser.add_argument("--hostile", metavar="FOLDER",
                        help="more hostile programs for --self-test (default: tests/hostile beside this file)")
    # How programs run
    parser.add_argument("--mode", choices=["module", "released"], default="module",
                        help="run programs as modules, or with the released evaluator's split namespace and None rule "
                        "(default: module)")
    parser.add_argument("--workers", type=int, default=os.cpu_count(),
                        help="programs run at once (default: the number of cores)")
    parser.add_argument("--memory-mb", type=int, default=256,
                        help="memory of one program, in MiB beside the interpreter (default: 256)")
    parser.add_argument("--call-timeout", type=float, default=1.0, help="seconds for one call (default: 1.0)")
    parser.add_argument("--program-timeout", type=float, default=5.0,
                        help="seconds for all calls of a program (default: 5.0)")
    parser.add_argument("--numpy", action="store_true", help="let programs import numpy (default: they cannot)")
    parser.add_argument("--tuples-as-lists", action="store_true", help="let a tuple equal a list (default: not)")
    # The layers
    parser.add_argument("--unsafe", action="store_true", help="run even without seccomp (default: refuse)")
    parser.add_argument("--without", default="", metavar="LAYERS",
                        help="leave layers out, to test and to price them: some of namespaces,landlock,seccomp "
                        "(default: none)")
    args = parser.parse_args()
    if not args.self_test and not (args.source and args.out):
        parser.error("give --in and --out, or --self-test")
    if args.workers < 1 or args.memory_mb < 1 or not 0 < args.call_timeout < 1e6 or not 0 < args.program_timeout < 1e6:
        die("--workers, --memory-mb, --call-timeout and --program-timeout must be above zero")
    if args.hostile and not Path(args.hostile).is_dir():
        die(f"--hostile {args.hostile}: no such folder")
    return args


def sandbox_of(args, **changes):
    names = "workers", "memory_mb", "call_timeout", "program_timeout", "mode", "numpy", "unsafe", "tuples_as_lists"
    settings = {name: getattr(args, name) for name in names}
    return Sandbox(**{**settings, "without": [layer for layer in args.without.split(",") if layer], **changes})


def finished_records(out, settings, overwrite):
    """(key, tests) of the records that an earlier run finished; cuts a torn last line, refuses other settings."""
    beside = out.with_suffix(".settings.json")
    if out.exists() and not overwrite:
        try:
            earlier = dict(json.loads(beside.read_text())) if beside.exists() else settings
        except (ValueError, TypeError):
            die(f"{beside} is damaged; delete it if {out} was made with the same settings, or use --overwrite")
        for name, value in settings.items():
            if earlier.get(name) != value:
                die(f"{out}: {name} was {earlier.get(name)}, now {value}; use --overwrite or another --out")
        with open(out, "rb+") as file:
            text = file.read()
            file.truncate(text.rfind(b"\n") + 1)
        finished = [(record_key(record), record["tests"]) for record in read_jsonl(out, required=("tests",))]
    else:
        finished = []
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text("")
        except OSError as error:
            die(f"--out {out} cannot be written: {error.strerror}")
    beside.write_text(json.dumps(settings, indent=1) + "\n")
    return finished


def record_key(record):
    return record.get("task_id"), record.get("sample")


def readable(path):
    """The records of an input, whose tasks are checked where they stand."""
    for number, record in enumerate(read_jsonl(path, required=("task", "answer")), 1):
        task = record["task"] if isinstance(record["task"], dict) else {}
        if not isinstance(task.get("ground_truth"), str) or not isinstance(task.get("test_cases"), dict) \
                or not task["test_cases"]:
            die(f"{path}, record {number}: expected a task with ground_truth (source text) and test_cases "
                f"(label: call), found {json.dumps(record['task'])[:80]}")
        yield record


def show_progress(done, total, since, first, shown=[0.0]):
    """A bar on a terminal, else a line every ten seconds."""
    now = time.monotonic()
    if now - max(since, shown[0]) < (0.2 if sys.stderr.isatty() else 10) and done < total:
        return
    shown[0] = now
    rate = (done - first) / max(now - since, 1e-9)
    bar = "#" * round(30 * done / max(total, 1))
    left = round((total - done) / rate) if rate else 0
    print(f"{done:>7}/{total} [{bar:30}] {rate:6.0f}/s, {left // 60}:{left % 60:02} left",
          end="\r" if sys.stderr.isatty() and done < total else "\n", file=sys.stderr, flush=True)


def score_file(args):
    """Score every record of --in into --out, in its order."""
    out = Path(args.out)
    if out.exists() and Path(args.source).exists() and out.samefile(args.source):
        die(f"--out is --in ({out}); a stage does not change its input")
    if out.is_dir():
        die(f"--out {out} is a folder; name a file in it")
    names = "mode", "memory_mb", "call_timeout", "program_timeout", "numpy", "tuples_as_lists", "unsafe", "without"
    settings = {name: getattr(args, name) for name in names}
    total = sum(1 for _ in readable(args.source))    # the whole input is checked before anything is written
    with sandbox_of(args) as box:    # before --overwrite takes anything away
        finished = finished_records(out, settings, args.overwrite)
        records = readable(args.source)
        for number, (key, _) in enumerate(finished, 1):
            record = next(records, {})
            if record_key(record) != key:
                die(f"{out}, record {number}: task_id and sample are {key}, in {args.source} {record_key(record)}; "
                    "use --overwrite or another --out")
        results = [tests for _, tests in finished]
        with open(out, "a", encoding="utf-8") as file:
            since = time.monotonic()
            for record, tests in box.score_many((record, record["task"], record["answer"]) for record in records):
                record |= {"reward": share_passed(tests), "tests": tests, "sandbox": box.layers}
                file.write(json.dumps(record) + "\n")
                file.flush()
                results.append(tests)
                show_progress(len(results), total, since, len(finished))
    rewards = [share_passed(tests) for tests in results] or [0.0]
    statuses = Counter(status for tests in results for status in tests.values())
    print(f"wrote {out}: {total} records, {len(finished)} of them earlier; "
          f"mean reward {sum(rewards) / len(rewards):.3f}, all tests passed by {rewards.count(1) / len(rewards):.1%}")
    print("tests: " + ", ".join(f"{count} {status}" for status, count in statuses.most_common(12)))


def share_passed(tests):
    return sum(status == "passed" for status in tests.values()) / len(tests)


# The hostile programs in this file are a sample; tests/hostile holds the rest. Each says what must not come true
# (claim), the statuses that its ten calls may have (expect), and whether a pivoted root is needed to hold it (needs:
# pivot), or that or Landlock (needs: landlock).
HOSTILE_TASK = {
    "ground_truth": '''
def solve(x):
    if isinstance(x, (int, float)):
        return x * 3 + 1
    if isinstance(x, str):
        return x[::-1] + "!"
    if isinstance(x, dict):
        return {value: key for key, value in x.items()}
    return sorted(set(x))
''',
    "test_cases": {str(number): f"solve({argument})" for number, argument in enumerate(
        ["1", "-2", "0.25", "True", "'abc'", "''", "[3, 1, 2, 2]", "(7, 7)", "{'a': 1}", "{5, 4}"], 1)}}
HOSTILE = {
    "lying_eq": '''
# claim: an object that says it equals everything passes
# expect: not comparable
class Yes:
    def __eq__(self, other): return True
    def __hash__(self): return 0
def solve(x): return Yes()
''',
    "socket": '''
# claim: a program reaches the network
# expect: error: PermissionError
import socket
def solve(x): return socket.socket()
''',
    "write_file": '''
# claim: a program writes a file
# expect: error: PermissionError | error: FileNotFoundError
def solve(x): return open("/tmp/written-by-the-sandbox", "w")
''',
    "fork": '''
# claim: a program starts a process
# expect: error: PermissionError | error: BlockingIOError
import os
def solve(x): return os.fork()
''',
    "swallow": '''
# claim: a program that catches everything outlives its time
# expect: timeout
def solve(x):
    while True:
        try:
            while True: pass
        except BaseException: pass
''',
    "exit": '''
# claim: a program that ends its process ends more than that, or passes
# expect: killed: exit
import os
def solve(x): os._exit(0)
''',
    "memory": '''
# claim: a program takes all of the memory
# expect: killed: memory
def solve(x): return len("x" * (1 << 34))
''',
    "crash": '''
# claim: a program that crashes the interpreter takes the zygote along
# expect: killed: SIGSEGV
import ctypes
def solve(x): return ctypes.string_at(0)
''',
}


def hostile_programs(folder):
    """{name: source} of the programs in this file and in a folder."""
    folder = Path(folder) if folder else Path(__file__).resolve().parent / "tests" / "hostile"
    return {**HOSTILE, **{path.stem: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.py"))}}


def header(source, name):
    return next((line.split(":", 1)[1].strip() for line in source.splitlines() if line.startswith(f"# {name}:")), "")


def self_test(args):
    """Each hostile program must end as it says and pass nothing; then the reference itself must pass everything."""
    programs = queue.SimpleQueue()
    for item in hostile_programs(args.hostile).items():
        programs.put(item)
    total, verdicts = programs.qsize(), []
    secret = f"# known to the parent: {os.urandom(8).hex()}"    # some programs hunt for it
    task = {**HOSTILE_TASK, "ground_truth": HOSTILE_TASK["ground_truth"] + secret}

    def work(box):
        while True:
            try:
                name, source = programs.get_nowait()
            except queue.Empty:
                return
            strength = {"": True, "pivot": box.layers["root"] == "pivoted",
                        "landlock": box.layers["root"] == "pivoted" or box.layers["landlock"] > 0}
            if not strength[header(source, "needs")]:
                verdicts.append((name, "not held", header(source, "needs")))
                continue
            expected = {status.strip() for status in header(source, "expect").split("|")}
            for _ in range(3):    # on a busy machine calls may be late; hardly three times
                statuses = set(box.score(task, source).values())
                honest = set(box.score(task, task["ground_truth"] + f"# after {name}").values())
                held = statuses & expected and statuses <= expected | {"timeout"} and honest == {"passed"}
                if held or not (statuses | honest) & {*CHANCE, "reference timeout"}:
                    break
            verdicts.append((name, "ok" if held else "FAILED", ", ".join(sorted(statuses)) if honest == {"passed"} else
                             f"{sorted(statuses)}, and the honest program after it: {sorted(honest)}"))

    boxes = [sandbox_of(args, workers=1, program_timeout=1.5 * args.call_timeout, mode="module")
             for _ in range(args.workers)]
    try:
        print("layers: " + json.dumps(boxes[0].layers))
        with ThreadPoolExecutor(args.workers) as threads:
            for future in [threads.submit(work, box) for box in boxes]:
                future.result()
    finally:
        for box in boxes:
            box.close()
    for name, result, what in sorted(verdicts):
        print(f"{result:8} {name:28} {what}")
    failed = sum(result == "FAILED" for _, result, _ in verdicts)
    skipped = sum(result == "not held" for _, result, _ in verdicts)
    print(f"{total} hostile programs: {total - failed - skipped} contained, {failed} failed, "
          f"{skipped} beyond the layers that are on")
    return 1 if failed else 0


if __name__ == "__main__":
    arguments = parse_args()
    try:
        sys.exit(self_test(arguments) if arguments.self_test else score_file(arguments))
    except KeyboardInterrupt:
        print("\nstopped; the same command continues", file=sys.stderr)
        sys.exit(130)
