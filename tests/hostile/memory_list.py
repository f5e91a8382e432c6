# claim: a list that grows for ever
# expect: killed: memory | timeout
def solve(x):
    hoard = []
    while True:
        hoard.append(bytearray(1 << 20))
