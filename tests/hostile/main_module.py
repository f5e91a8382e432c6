# claim: the main module holds the tasks
# expect: error: Contained
import __main__
class Contained(Exception): pass
def solve(x):
    if any(hasattr(__main__, name) for name in ("HOSTILE_TASK", "Sandbox", "verdict", "arguments")):
        return "BREACH"
    raise Contained
