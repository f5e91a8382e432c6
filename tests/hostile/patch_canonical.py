# claim: a patched canonical() decides what is right
# expect: wrong | not comparable
import __main__
def solve(x):
    __main__.canonical = lambda *args: b"passed"
    __main__.KINDS.clear()
    return 0
