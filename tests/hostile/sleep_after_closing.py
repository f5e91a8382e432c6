# claim: a program that closes everything and sleeps is waited for
# expect: timeout
import os, time
def solve(x):
    for descriptor in range(64):
        try:
            os.close(descriptor)
        except OSError:
            pass
    time.sleep(1000)
