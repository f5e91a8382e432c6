# claim: a sleeping program is waited for
# expect: timeout
import time
def solve(x): time.sleep(1000)
