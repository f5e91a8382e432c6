# claim: a tower of powers holds the parent up
# expect: timeout | killed: memory
def solve(x): return 9 ** 9 ** 9
