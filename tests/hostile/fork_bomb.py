# claim: a fork bomb
# expect: error: PermissionError | error: BlockingIOError
import os
def solve(x):
    while True:
        os.fork()
