# claim: a class whose __mro__ is a lie is taken for a list
# expect: not comparable
class Meta(type):
    __mro__ = property(lambda cls: (cls, list, object))
    __bases__ = property(lambda cls: (list,))
class Yes(metaclass=Meta): pass
def solve(x): return Yes()
