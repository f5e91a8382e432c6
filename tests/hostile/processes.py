# claim: a process is started by one of the library's ways
# expect: error: Contained | timeout
import os, subprocess
class Contained(Exception): pass
def solve(x):
    for attempt in (lambda: subprocess.run(["true"]), lambda: os.posix_spawn("/bin/true", ["true"], {}), os.forkpty,
                    lambda: os.popen("true").read() or 1):
        try:
            attempt()
            return "BREACH"
        except (OSError, RuntimeError):
            pass
    if os.system("true") == 0:
        return "BREACH"
    raise Contained
