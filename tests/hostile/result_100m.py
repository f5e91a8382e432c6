# claim: a result of 100 MB is carried
# expect: not comparable | killed: memory | timeout
def solve(x): return b"x" * (100 << 20)
