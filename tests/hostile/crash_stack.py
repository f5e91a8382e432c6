# claim: a smashed stack takes the zygote along
# expect: killed: SIGSEGV | killed: SIGABRT | killed: SIGBUS | killed: SIGILL
import ctypes
def solve(x):
    spot = ctypes.create_string_buffer(8)
    ctypes.memset(ctypes.addressof(spot), 0x41, 1 << 30)
