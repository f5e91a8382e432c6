# claim: an object that equals everything passes inside a list
# expect: not comparable
class Yes:
    def __eq__(self, other): return True
def solve(x): return [Yes(), Yes(), Yes()]
