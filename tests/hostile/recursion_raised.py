# claim: endless recursion under a raised limit takes the zygote along
# expect: killed: memory | killed: SIGSEGV | timeout | error: RecursionError
import sys
def solve(x):
    sys.setrecursionlimit(10 ** 9)
    return solve(x)
