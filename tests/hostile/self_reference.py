# claim: a list that holds itself is followed for ever
# expect: not comparable
def solve(x):
    ring = []
    ring.append(ring)
    return ring
