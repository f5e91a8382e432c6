# claim: a million small items in a set are sorted for ever
# expect: not comparable | timeout
def solve(x): return {(i, i) for i in range(300_000)}
