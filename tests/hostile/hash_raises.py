# claim: an object whose hash raises gets the comparison to give up
# expect: not comparable
class Yes:
    __hash__ = None
    def __eq__(self, other): raise KeyboardInterrupt
    def __repr__(self): raise SystemExit
def solve(x): return Yes()
