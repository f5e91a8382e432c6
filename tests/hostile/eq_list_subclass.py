# claim: a list that shows other items than it has passes
# expect: wrong
class Yes(list):
    def __eq__(self, other): return True
    def __iter__(self): return iter([1, 2, 3])
    def __len__(self): return 3
    def __getitem__(self, i): return [1, 2, 3][i]
def solve(x): return Yes([9, 9])
