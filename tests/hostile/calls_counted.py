# claim: what call 1 leaves behind answers call 2
# expect: wrong
import itertools
count = itertools.count()
def solve(x, seen=[]):
    seen.append(x)
    return f"call {next(count)} after {seen}"
