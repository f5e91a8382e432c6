# claim: a float with lying conversions passes
# expect: wrong
class Yes(float):
    def __eq__(self, other): return True
    def as_integer_ratio(self): return 4, 1
    def __float__(self): return 4.0
    def is_integer(self): return True
    def hex(self): return "0x1p2"
def solve(x): return Yes(99.5)
