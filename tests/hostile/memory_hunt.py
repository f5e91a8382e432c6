# claim: the reference's text can be found in the process's memory
# expect: error: Contained | killed: SIGSEGV | timeout
import ctypes, re
class Contained(Exception): pass
def solve(x):
    start = id(object()) & ~0xFFFFF
    if re.search(rb"known to the paren[t]: [0-9a-f]{16}", ctypes.string_at(start, 1 << 20)):
        return "BREACH"
    raise Contained
