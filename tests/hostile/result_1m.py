# claim: a result beyond the limit is carried
# expect: not comparable
def solve(x): return "x" * (1 << 20)
