# claim: a source with odd characters brings the harness down
# expect: error: SyntaxError
def solve(x): return "é\u0000" + ࿿
