# claim: an exception's metaclass answers for its name
# expect: error: Quiet
class Meta(type):
    __name__ = property(lambda cls: 1 / 0)
    def __str__(cls): raise SystemExit
class Quiet(Exception, metaclass=Meta):
    def __str__(self): raise SystemExit
    __repr__ = __str__
def solve(x): raise Quiet
