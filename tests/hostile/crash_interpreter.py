# claim: an interpreter whose None is broken takes the zygote along
# expect: killed: SIGSEGV | killed: SIGABRT | killed: exit | killed: SIGFPE | killed: SIGBUS
import ctypes
def solve(x):
    ctypes.memset(id(type(None)), 0, 64)
    return [None] * 3, str(None), None == 1, sorted([None])
