# claim: a __future__ import changes the harness
# expect: wrong
from __future__ import annotations
def solve(x: nonsense) -> rubbish: return 0
