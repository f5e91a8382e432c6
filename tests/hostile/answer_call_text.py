# claim: the text of the call passes as its answer
# expect: wrong
import sys
def solve(x):
    frame = sys._getframe()
    while "call" not in frame.f_locals:
        frame = frame.f_back
    return frame.f_locals["call"]
