# claim: open files exhaust the machine's
# expect: error: OSError
import os
def solve(x): return [open(os.__file__) for _ in range(100_000)]
