# claim: a gigabyte of results fills the parent
# expect: not comparable | wrong
import os
def solve(x):
    data = b"V\0\x0f\xff\xff" + b"x" * 0xFFFFF
    while True:
        for fd in range(3, 64):
            try:
                os.write(fd, data)
            except OSError:
                pass
