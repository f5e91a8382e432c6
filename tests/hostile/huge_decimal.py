# claim: a Decimal of a billion digits is written out
# expect: not comparable
from decimal import Decimal
def solve(x): return Decimal("1e999999")
