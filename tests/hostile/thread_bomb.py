# claim: a thread bomb
# expect: error: RuntimeError
import _thread, time
def solve(x):
    while True:
        _thread.start_new_thread(time.sleep, (1000,))
