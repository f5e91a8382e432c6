# claim: a 32-bit system call passes the filter
# expect: killed: SIGSYS | killed: SIGSEGV | error: Contained | error: PermissionError
import ctypes, mmap, os
class Contained(Exception): pass
def solve(x):
    if os.uname().machine != "x86_64":
        raise Contained
    code = mmap.mmap(-1, 4096, prot=7)
    code.write(b"\xb8\x14\0\0\0\xcd\x80\xc3")    # mov eax, 20 (getpid); int 0x80; ret
    ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()
    return "BREACH"
