# claim: a program that ignores every signal outlives its time
# expect: timeout
import signal
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
def solve(x):
    while True:
        pass
