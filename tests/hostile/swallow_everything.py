# claim: a program that catches everything outlives its time
# expect: timeout
def solve(x):
    while True:
        try:
            while True: pass
        except BaseException: pass
