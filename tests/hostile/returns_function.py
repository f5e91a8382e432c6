# claim: a function passes
# expect: not comparable
def solve(x): return lambda *args: True
