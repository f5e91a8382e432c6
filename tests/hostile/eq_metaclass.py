# claim: a class whose metaclass says it equals everything passes
# expect: not comparable
class Meta(type):
    def __eq__(cls, other): return True
    def __hash__(cls): return 0
class Yes(metaclass=Meta): pass
def solve(x): return Yes
