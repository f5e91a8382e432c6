# claim: a set that shows other members than it has passes
# expect: wrong
class Yes(set):
    def __eq__(self, other): return True
    def __iter__(self): return iter([4, 5])
    def __len__(self): return 2
def solve(x): return Yes({8})
