# claim: a source of endless parentheses takes the compiler along
# expect: error: SyntaxError | killed: memory | error: RecursionError | killed: SIGSEGV
def solve(x): return eval("(" * 100_000 + ")" * 100_000)
