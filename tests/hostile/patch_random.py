# claim: a patched random module stays for the next program
# expect: wrong
import random, math
random.seed = lambda *args: None
math.gcd = math.isfinite = lambda *args: 1
def solve(x): return 0.123
