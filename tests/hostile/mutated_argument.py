# claim: an argument changed in place counts as the answer
# expect: wrong
def solve(x):
    if isinstance(x, list):
        x.sort()
        x.append("changed")
    return None
