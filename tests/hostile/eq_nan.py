# claim: a NaN passes where no NaN is expected
# expect: wrong
def solve(x): return float("nan")
