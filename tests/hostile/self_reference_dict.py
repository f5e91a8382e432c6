# claim: a dict that holds itself is followed for ever
# expect: not comparable
def solve(x):
    ring = {}
    ring[1] = [ring]
    return ring
