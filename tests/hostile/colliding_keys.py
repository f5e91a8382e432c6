# claim: a million colliding keys hold the parent up
# expect: timeout
def solve(x):
    return len({i * ((1 << 61) - 1): i for i in range(1, 1_000_000)})
