# claim: patched limits let large results through
# expect: not comparable | timeout
import __main__
__main__.MAX_RESULT = 1 << 40
def solve(x): return "x" * (8 << 20)
