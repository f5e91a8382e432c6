# claim: a program starts a process
# expect: error: PermissionError | error: BlockingIOError
import os
def solve(x): return os.fork()
