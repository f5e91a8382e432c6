# claim: answers for calls not yet asked confuse the count
# expect: not comparable | wrong
import os
def solve(x):
    for fd in range(3, 64):
        try:
            os.write(fd, b"V\0\0\0\x01N" * 50)
        except OSError:
            pass
