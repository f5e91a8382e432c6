# claim: a loop inside the interpreter's C code cannot be interrupted
# expect: timeout
def solve(x): return sum(range(10 ** 12))
