# claim: exit handlers run, or outlive the program
# expect: wrong
import atexit, time
atexit.register(time.sleep, 1000)
def solve(x): return 0
