# claim: what call 1 leaves in a library answers call 2
# expect: wrong
import math
def solve(x):
    math.seen = getattr(math, "seen", []) + [x]
    return math.seen
