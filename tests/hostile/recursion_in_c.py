# claim: endless recursion through C code takes the zygote along
# expect: killed: memory | killed: SIGSEGV | timeout | error: RecursionError
import sys
class Deep:
    def __repr__(self): return repr([self])
def solve(x):
    sys.setrecursionlimit(10 ** 9)
    return repr(Deep())
