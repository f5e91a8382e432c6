# claim: an alarm's handler raises inside the harness
# expect: wrong | not comparable | killed: exit | error: ZeroDivisionError | error: RecursionError | killed: SIGALRM
import signal
def handler(*args): 1 / 0
def solve(x):
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.0001, 0.0001)
    return "nothing"
