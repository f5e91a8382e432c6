# claim: writing to every descriptor reaches the parent as a pass
# expect: not comparable | killed: exit
import os
def solve(x):
    for fd in range(64):
        try:
            os.write(fd, b"passed\n" * 10)
        except OSError:
            pass
    return "passed"
