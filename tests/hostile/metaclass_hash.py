# claim: a metaclass that lies about its classes' hash gets them taken for int
# expect: not comparable
class Meta(type):
    def __hash__(cls): return hash(int)
    def __eq__(cls, other): return True
class Yes(metaclass=Meta):
    def __index__(self): return 4
def solve(x): return Yes()
