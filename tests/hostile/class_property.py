# claim: an object whose __class__ says int is taken for one
# expect: not comparable
class Yes:
    @property
    def __class__(self): return int
    def __index__(self): return 4
    def __add__(self, other): return 4
def solve(x): return Yes()
