# claim: a bytes with lying methods passes
# expect: wrong
class Yes(bytes):
    def __eq__(self, other): return True
    def __bytes__(self): return b"cba!"
    def __getitem__(self, key): return b"cba!"
def solve(x): return Yes(b"?")
