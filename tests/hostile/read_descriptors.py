# claim: a descriptor of the parent's can be read
# expect: error: Contained
import os
class Contained(Exception): pass
def solve(x):
    for fd in range(64):
        try:
            if os.pread(fd, 100, 0) or os.read(fd, 100):
                return "BREACH"
        except OSError:
            pass
    raise Contained
