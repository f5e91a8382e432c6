# claim: a program that knows it is not the main one passes
# expect: wrong
if __name__ == "__main__":
    raise SystemExit
def solve(x): return __name__
