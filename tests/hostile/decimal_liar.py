# claim: a Decimal with lying methods passes
# expect: wrong
from decimal import Decimal
class Yes(Decimal):
    def __eq__(self, other): return True
    def as_integer_ratio(self): return 4, 1
def solve(x): return Yes("99.9")
