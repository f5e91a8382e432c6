# claim: a system call of the x32 kind passes the filter
# expect: killed: SIGSYS | error: Contained
import ctypes, os
class Contained(Exception): pass
def solve(x):
    if os.uname().machine != "x86_64":
        raise Contained
    ctypes.CDLL(None).syscall(0x40000000 | 39)
    return "BREACH"
