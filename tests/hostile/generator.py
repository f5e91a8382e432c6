# claim: a generator is run by the comparison
# expect: not comparable
def solve(x):
    yield 4
