# claim: a program that closes its results goes on
# expect: killed: exit
import os
def solve(x):
    os.closerange(0, 1 << 10)
    return 0
