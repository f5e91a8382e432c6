# claim: a Fraction filled with liars passes
# expect: not comparable
from fractions import Fraction
class Yes(int):
    def __eq__(self, other): return True
    def __floordiv__(self, other): return 4
def solve(x):
    half = Fraction(1, 2)
    half._numerator = Yes(9)
    return half
