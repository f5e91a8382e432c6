# claim: a program that puts another file in the place of its results confuses the parent
# expect: killed: exit | timeout | wrong
import os
def solve(x):
    for descriptor in range(3, 64):
        try:
            os.close(descriptor)
        except OSError:
            pass
    for _ in range(32):
        try:
            os.open(os.__file__, os.O_RDONLY)
        except OSError:
            pass
    return 0
