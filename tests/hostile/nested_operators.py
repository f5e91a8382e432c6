# claim: a source of endless operators takes the compiler along
# expect: error: RecursionError | killed: memory | killed: SIGSEGV | error: SyntaxError | timeout
def solve(x): return eval("-" * 1_000_000 + "1")
