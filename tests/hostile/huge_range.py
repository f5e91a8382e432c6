# claim: a range of 10 ** 30 numbers is walked through
# expect: wrong
def solve(x): return range(10 ** 30)
