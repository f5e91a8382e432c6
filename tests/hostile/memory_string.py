# claim: a program takes all of the memory
# expect: killed: memory
def solve(x): return len("x" * (1 << 34))
