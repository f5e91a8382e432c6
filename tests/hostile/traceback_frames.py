# claim: the expected value stands in the frames of a traceback
# expect: error: Contained
import re
class Contained(Exception): pass
def solve(x):
    try:
        1 / 0
    except ZeroDivisionError as error:
        frame = error.__traceback__.tb_frame
    while frame:
        if re.search("known to the paren[t]: [0-9a-f]{16}", repr(frame.f_locals)):
            return "BREACH"
        frame = frame.f_back
    raise Contained
