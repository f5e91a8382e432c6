# claim: a program that closes everything and sleeps is waited for
# expect: killed: silent | timeout
import os, time
def solve(x):
    os.closerange(0, 1 << 10)
    time.sleep(1000)
