# claim: a file outside the library can be read
# expect: error: Contained
# needs: landlock
import os
class Contained(Exception): pass
def solve(x):
    for path in ("/etc/passwd", "/etc/hostname", "/etc/ld.so.cache", "/bin/sh", "/proc/self/environ", "/proc/version", "/dev/urandom",
                 "/dev/null", "/sys/kernel/notes"):
        try:
            os.open(path, os.O_RDONLY)
            return "BREACH"
        except OSError:
            pass
    raise Contained
