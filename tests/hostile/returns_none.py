# claim: None passes
# expect: wrong
def solve(x): return None
