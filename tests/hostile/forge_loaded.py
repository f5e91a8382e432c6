# claim: endless notices of having loaded keep the clock from running out
# expect: not comparable | timeout
import os
def solve(x):
    while True:
        for fd in range(3, 64):
            try:
                os.write(fd, b"L\0\0\0\0")
            except OSError:
                pass
