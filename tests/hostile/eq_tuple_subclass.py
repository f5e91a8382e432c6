# claim: a tuple that shows other items than it has passes
# expect: wrong
class Yes(tuple):
    def __eq__(self, other): return True
    def __iter__(self): return iter([7])
    def __len__(self): return 1
def solve(x): return Yes((9, 9))
