# claim: a program that ends its process ends more than that, or passes
# expect: killed: exit
import os
def solve(x): os._exit(0)
