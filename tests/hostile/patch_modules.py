# claim: emptied modules stop the harness
# expect: wrong | killed: exit | error: KeyError | error: ImportError | error: AttributeError | error: ModuleNotFoundError | error: RuntimeError
import sys, os
def solve(x):
    sys.modules.clear()
    os.write = None
    return 0
