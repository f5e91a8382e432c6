# claim: a trace function changes the harness's variables
# expect: wrong | killed: exit
import sys
def trace(frame, event, arg):
    for name in "value", "frame":
        if name in frame.f_locals:
            frame.f_locals[name] = "passed"
    return trace
def solve(x):
    sys.settrace(trace)
    sys.setprofile(lambda *args: None)
    frame = sys._getframe().f_back
    while frame:
        frame.f_trace = trace
        frame = frame.f_back
    return "nothing"
