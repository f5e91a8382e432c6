# claim: a descriptor is set to send signals to another process
# expect: error: Contained
import fcntl, os
class Contained(Exception): pass
def solve(x):
    for fd in range(0, 64):
        for command, value in ((fcntl.F_SETOWN, os.getppid()), (fcntl.F_SETSIG, 9), (fcntl.F_SETFL, os.O_ASYNC), (1031, 1 << 20)):
            try:
                fcntl.fcntl(fd, command, value)
                return "BREACH"
            except OSError:
                pass
    raise Contained
