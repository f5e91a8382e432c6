# claim: endless recursion overflows the stack of the process
# expect: error: RecursionError
def solve(x): return solve(x)
