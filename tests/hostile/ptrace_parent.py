# claim: the zygote is traced
# expect: error: Contained
import ctypes, os
class Contained(Exception): pass
def solve(x):
    libc = ctypes.CDLL(None)
    for request in (16, 0x4206, 0):
        if libc.ptrace(request, os.getppid(), None, None) == 0:
            return "BREACH"
    raise Contained
