# claim: the mock library's ANY passes
# expect: not comparable | error: ModuleNotFoundError | error: ImportError | error: PermissionError | error: FileNotFoundError | timeout
def solve(x):
    from unittest.mock import ANY
    return ANY
