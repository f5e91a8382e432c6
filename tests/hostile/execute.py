# claim: another program takes this one's place
# expect: error: Contained
import os, sys
class Contained(Exception): pass
def solve(x):
    for path in ("/bin/sh", "/usr/bin/python3", sys.executable, "/proc/self/exe", os.__file__):
        for attempt in (lambda: os.execv(path, ["x"]), lambda: os.execve(path, ["x"], {})):
            try:
                attempt()
                return "BREACH"
            except (OSError, ValueError):
                pass
    raise Contained
