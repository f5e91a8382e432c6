# claim: a process's memory can be read through /proc
# expect: error: Contained
# needs: landlock
import os
class Contained(Exception): pass
def solve(x):
    for who in ("self", "thread-self", 1, os.getppid(), os.getpid()):
        for what in ("mem", "environ", "maps", "fd", "cmdline", "task"):
            try:
                os.open(f"/proc/{who}/{what}", os.O_RDONLY)
                return "BREACH"
            except OSError:
                pass
    raise Contained
