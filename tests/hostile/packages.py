# claim: packages installed on the machine can be imported
# expect: error: ModuleNotFoundError
def solve(x):
    import pip
