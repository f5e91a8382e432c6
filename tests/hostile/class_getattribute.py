# claim: an object that answers every attribute as an int would is taken for one
# expect: not comparable
class Yes:
    def __getattribute__(self, name): return getattr(4, name)
def solve(x): return Yes()
