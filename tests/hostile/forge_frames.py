# claim: forged results are taken for right ones
# expect: wrong | not comparable
import os, struct
def solve(x):
    for fd in range(3, 64):
        try:
            os.write(fd, struct.pack("!cI", b"V", 6) + b"passed")
        except OSError:
            pass
    return "passed"
