# claim: an exception's name is taken for a status
# expect: error: passed
def solve(x): raise type("passed", (Exception,), {})
