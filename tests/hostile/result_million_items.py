# claim: a result of a million items is carried
# expect: not comparable | timeout
def solve(x): return list(range(1_000_000))
