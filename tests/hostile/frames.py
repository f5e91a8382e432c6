# claim: the expected value stands in a frame above
# expect: error: Contained
import re, sys
class Contained(Exception): pass
def solve(x):
    frame = sys._getframe()
    while frame:
        for name, value in [*frame.f_locals.items(), *frame.f_globals.items()]:
            if name in ("expected", "reference", "references", "ground_truth", "task"):
                return "BREACH"
            if re.search("known to the paren[t]: [0-9a-f]{16}", repr(value)):
                return "BREACH"
        frame = frame.f_back
    raise Contained
