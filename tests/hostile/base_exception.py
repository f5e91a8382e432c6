# claim: a BaseException of one's own escapes
# expect: error: Mine
class Mine(BaseException): pass
def solve(x): raise Mine
