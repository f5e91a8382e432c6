# claim: a program that ends its process as it loads costs ten processes
# expect: killed: exit
import os
os._exit(3)
