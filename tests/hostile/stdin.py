# claim: a program that reads its input waits for ever
# expect: error: EOFError
def solve(x): return input()
