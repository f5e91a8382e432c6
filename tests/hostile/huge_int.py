# claim: an int of 100 million bits is carried
# expect: not comparable | timeout
def solve(x): return 1 << 100_000_000
