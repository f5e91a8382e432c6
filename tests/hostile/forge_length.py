# claim: a frame that says it is 4 GB long makes the parent take 4 GB
# expect: not comparable
import os
def solve(x):
    os.write(_fd(), b"V\xff\xff\xff\xff" + b"x" * 1000)
    return 0
def _fd():
    for fd in range(3, 64):
        try:
            os.fstat(fd)
            return fd
        except OSError:
            pass
