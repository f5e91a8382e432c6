# claim: the environment leaks in
# expect: error: Contained
import os, sys
class Contained(Exception): pass
def solve(x):
    if os.environ or any(sys.argv) or os.getcwd() not in ("/", ""):
        return "BREACH"
    raise Contained
