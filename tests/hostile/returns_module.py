# claim: a module passes
# expect: not comparable
import math
def solve(x): return math
