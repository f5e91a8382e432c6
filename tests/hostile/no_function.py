# claim: a program without the function passes
# expect: error: NameError
pass
