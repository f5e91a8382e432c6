# claim: KeyboardInterrupt stops the parent
# expect: error: KeyboardInterrupt
def solve(x): raise KeyboardInterrupt
