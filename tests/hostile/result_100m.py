# claim: a result of 100 MB is carried
# expect: not comparable | timeout
def solve(x): return b"x" * (100 << 20)
