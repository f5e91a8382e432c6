# claim: a process without builtins goes astray
# expect: killed: exit | error: NameError | error: KeyError | error: AttributeError | error: ImportError | error: TypeError | wrong
import builtins
def solve(x):
    vars(builtins).clear()
    return 0
