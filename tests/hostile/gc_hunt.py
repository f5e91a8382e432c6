# claim: the reference's text or results can be found among the live objects
# expect: error: Contained | timeout
import gc, re
class Contained(Exception): pass
def solve(x):
    gc.unfreeze()
    for thing in gc.get_objects():
        for value in gc.get_referents(thing):
            if type(value) in (str, bytes) and re.search("known to the paren[t]: [0-9a-f]{16}", str(value)):
                return "BREACH"
    raise Contained
