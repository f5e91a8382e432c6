# claim: a finaliser that never ends is waited for
# expect: timeout | wrong
class Slow:
    def __del__(self):
        while True:
            pass
def solve(x):
    global slow
    slow = Slow()
    return 0
