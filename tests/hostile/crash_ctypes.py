# claim: a program that crashes the interpreter takes the zygote along
# expect: killed: SIGSEGV
import ctypes
def solve(x): return ctypes.string_at(0)
