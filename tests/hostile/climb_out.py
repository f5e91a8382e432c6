# claim: a path leads out of the root
# expect: error: Contained
# needs: landlock
import os
class Contained(Exception): pass
def solve(x):
    for attempt in (lambda: os.open("/" + "../" * 40 + "etc/passwd", os.O_RDONLY), lambda: os.chroot("/"), lambda: os.chdir("/etc"),
                    lambda: os.open("/proc/self/root/etc/passwd", os.O_RDONLY), lambda: os.open("/proc/1/root", os.O_RDONLY)):
        try:
            attempt()
            return "BREACH"
        except OSError:
            pass
    raise Contained
