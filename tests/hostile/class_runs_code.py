# claim: asking for an object's class runs its code in the process that compares
# expect: not comparable
import os
class Yes:
    @property
    def __class__(self): os._exit(0)
def solve(x): return Yes()
