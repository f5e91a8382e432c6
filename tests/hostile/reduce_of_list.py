# claim: a list's __reduce__ is used to carry it
# expect: wrong
class Yes(list):
    def __reduce_ex__(self, protocol): return list, ([1, 2, 3],)
def solve(x): return Yes([9])
