# claim: small objects that are kept for ever
# expect: killed: memory | timeout
def solve(x):
    hoard = []
    while True:
        hoard.append(object())
