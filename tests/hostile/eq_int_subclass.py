# claim: an int that says it equals everything passes
# expect: wrong
class Yes(int):
    def __eq__(self, other): return True
    def __hash__(self): return 0
    def __int__(self): return 4
    def __index__(self): return 4
    def __add__(self, other): return 4
    def bit_length(self): return 3
    def __format__(self, how): return "4"
def solve(x): return Yes(99)
