# claim: an object that equals everything passes as a dict's key
# expect: not comparable
class Yes:
    def __eq__(self, other): return True
    def __hash__(self): return hash(1)
def solve(x): return {Yes(): "a"}
