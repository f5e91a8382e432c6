# claim: an audit hook that raises brings the harness down
# expect: killed: exit | error: ZeroDivisionError | not comparable | wrong
import sys
def hook(event, args): 1 / 0
def solve(x):
    sys.addaudithook(hook)
    return "nothing"
