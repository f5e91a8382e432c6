# claim: SystemExit ends the run
# expect: error: SystemExit
import sys
def solve(x): sys.exit(0)
