# claim: a program that catches MemoryError goes on taking
# expect: timeout | killed: memory
def solve(x):
    hoard = []
    while True:
        try:
            hoard.append("x" * (1 << 20) + str(len(hoard)))
        except MemoryError:
            pass
