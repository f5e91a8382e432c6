# claim: the time passes as the answer
# expect: wrong
import time
def solve(x): return time.time()
