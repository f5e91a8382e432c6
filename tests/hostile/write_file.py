# claim: a program writes a file
# expect: error: PermissionError | error: FileNotFoundError
def solve(x): return open("/tmp/written-by-the-sandbox", "w")
