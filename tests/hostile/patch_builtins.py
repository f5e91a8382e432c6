# claim: patched builtins help the program, or stay for the next one
# expect: wrong
import builtins
builtins.sorted = builtins.sum = builtins.len = lambda *args, **kwargs: 4
builtins.isinstance = lambda *args: True
builtins.type = lambda *args: int
builtins.id = builtins.bytes = builtins.memoryview = lambda *args: 0
def solve(x): return "nothing"
