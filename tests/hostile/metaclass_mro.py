# claim: a metaclass that invents its classes' ancestors gets them taken for ints
# expect: not comparable | wrong | error: TypeError
class Meta(type):
    def mro(cls): return [cls, int, object]
class Yes(metaclass=Meta):
    def __eq__(self, other): return True
def solve(x): return Yes()
