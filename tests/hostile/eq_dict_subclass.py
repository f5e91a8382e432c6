# claim: a dict that shows other entries than it has passes
# expect: wrong
class Yes(dict):
    def __eq__(self, other): return True
    def items(self): return [(1, "a")]
    def keys(self): return [1]
    def __iter__(self): return iter([1])
    def __getitem__(self, key): return "a"
    def __len__(self): return 1
def solve(x): return Yes({8: 8})
