# claim: a str with lying methods passes
# expect: wrong
class Yes(str):
    def __eq__(self, other): return True
    def __hash__(self): return 0
    def __str__(self): return "cba!"
    def encode(self, *args): return b"cba!"
    def __len__(self): return 4
def solve(x): return Yes("nothing like it")
