# claim: signals reach the zygote, the parent, or everyone
# expect: error: Contained
import os, signal, ctypes
class Contained(Exception): pass
def solve(x):
    for pid in (os.getppid(), 1, 2, -1, 0, os.getpid()):
        for attempt in (lambda: os.kill(pid, signal.SIGKILL), lambda: os.killpg(abs(pid), signal.SIGSTOP), lambda: os.pidfd_open(pid)):
            try:
                attempt()
                return "BREACH"
            except OSError:
                pass
    libc = ctypes.CDLL(None)
    if libc.syscall(234 if os.uname().machine == "x86_64" else 131, 1, 1, 9) == 0:    # tgkill
        return "BREACH"
    raise Contained
