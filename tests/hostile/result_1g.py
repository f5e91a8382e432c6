# claim: a result of 1 GB is made
# expect: killed: memory | timeout
def solve(x): return "x" * (1 << 30)
