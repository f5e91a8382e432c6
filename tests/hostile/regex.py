# claim: a catastrophic regular expression holds the parent up
# expect: timeout
import re
def solve(x): return re.match(r"(a+)+$", "a" * 60 + "b")
