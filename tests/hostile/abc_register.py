# claim: a class registered as a number is taken for one
# expect: not comparable
import numbers
@numbers.Number.register
class Yes:
    def __eq__(self, other): return True
    def __instancecheck__(self, other): return True
def solve(x): return Yes()
