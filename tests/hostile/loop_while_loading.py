# claim: a program that never finishes loading takes ten times its time
# expect: timeout
while True:
    pass
