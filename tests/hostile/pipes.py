# claim: pipes take the kernel's memory
# expect: error: PermissionError
import os
def solve(x): return [os.pipe() for _ in range(1000)]
