# claim: packages installed on the machine can be imported
# expect: error: ModuleNotFoundError
# needs: landlock
def solve(x):
    import pip
