# claim: an object that says it equals everything passes
# expect: not comparable
class Yes:
    def __eq__(self, other): return True
    def __hash__(self): return 0
def solve(x): return Yes()
