# claim: a program learns which paths exist
# expect: error: Contained
# needs: pivot
import os
class Contained(Exception): pass
def solve(x):
    if any(map(os.path.exists, ("/etc/passwd", "/bin", "/proc/self", "/dev/null", "/sys/kernel", "/var/log", "/boot"))):
        return "BREACH"
    raise Contained
