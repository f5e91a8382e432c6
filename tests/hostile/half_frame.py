# claim: half a frame makes the parent wait for ever
# expect: timeout
import os, time
for fd in range(3, 64):
    try:
        os.write(fd, b"V\0")
    except OSError:
        pass
time.sleep(1000)
