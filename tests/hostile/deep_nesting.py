# claim: a list of 100,000 levels overflows the comparison's stack
# expect: not comparable
def solve(x):
    nest = []
    for _ in range(100_000):
        nest = [nest]
    return nest
