# claim: a flood of output fills the parent or the disk
# expect: timeout
import sys
def solve(x):
    while True:
        print("x" * 10_000)
        sys.stderr.write("x" * 10_000)
