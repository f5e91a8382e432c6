# claim: an address passes as the answer
# expect: wrong
def solve(x): return id(object()), hash("abc")
