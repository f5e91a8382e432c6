# claim: a program that waits for a signal is waited for
# expect: timeout | wrong
import signal
def solve(x): signal.pause()
