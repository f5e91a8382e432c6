# claim: a program takes rights back
# expect: error: Contained
import os, resource
class Contained(Exception): pass
def solve(x):
    for attempt in (lambda: os.setuid(0), lambda: os.setgid(0), lambda: os.setgroups([0]), lambda: os.setresuid(0, 0, 0), lambda: os.nice(-5),
                    lambda: resource.setrlimit(resource.RLIMIT_AS, (-1, -1)), lambda: resource.setrlimit(resource.RLIMIT_CPU, (1, 1)),
                    lambda: os.sched_setaffinity(0, {0}), lambda: os.setsid(), lambda: os.sched_setscheduler(0, 0, os.sched_param(0)),
                    lambda: resource.prlimit(os.getppid(), resource.RLIMIT_AS, (1, 1))):
        try:
            attempt()
            return "BREACH"
        except (OSError, ValueError):
            pass
    raise Contained
