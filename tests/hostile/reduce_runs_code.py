# claim: __reduce__ runs in the process that compares
# expect: not comparable
import os
class Yes:
    def __reduce__(self): return os._exit, (0,)
    def __reduce_ex__(self, protocol): return os._exit, (0,)
    def __getstate__(self): os._exit(0)
def solve(x): return Yes()
