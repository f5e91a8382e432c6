# claim: a folder outside the library can be listed
# expect: error: Contained
# needs: landlock
import os
class Contained(Exception): pass
def solve(x):
    for path in ("/etc", "/proc", "/dev", "/usr/bin", "/var", "/", "/.."):
        try:
            if {"etc", "proc", "dev", "bin", "var"} & set(os.listdir(path)) or path.strip("./"):
                return "BREACH"
        except OSError:
            pass
    raise Contained
