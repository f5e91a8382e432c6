# claim: a program that puts another file in the place of its results confuses the parent
# expect: killed: exit | wrong
import os
def solve(x):
    os.closerange(3, 1 << 10)
    for _ in range(32):
        try:
            os.open(os.__file__, os.O_RDONLY)
        except OSError:
            pass
    return 0
