# claim: a program that closes its results goes on
# expect: killed: exit | timeout
import os
def solve(x):
    for descriptor in range(64):
        try:
            os.close(descriptor)
        except OSError:
            pass
    return 0
