# claim: memory mapped past the limit
# expect: error: OSError | error: PermissionError | killed: memory
import mmap
def solve(x):
    maps = [mmap.mmap(-1, 64 << 20) for _ in range(100)]
    return len(maps)
