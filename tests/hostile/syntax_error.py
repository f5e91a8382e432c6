# claim: a source that does not compile brings the harness down
# expect: error: SyntaxError
def solve(x:
