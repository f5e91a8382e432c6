# claim: a wrong result of 64 KB passes
# expect: wrong
def solve(x): return "x" * (1 << 16)
