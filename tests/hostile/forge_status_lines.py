# claim: an exception's name breaks the lines of a log
# expect: error: unnamed
def solve(x): raise type("X\npassed", (Exception,), {})
