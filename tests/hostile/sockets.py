# claim: a socket of some family
# expect: error: Contained
import socket
class Contained(Exception): pass
def solve(x):
    for family in range(0, 46):
        for kind in (1, 2, 3, 5):
            try:
                socket.socket(family, kind)
                return "BREACH"
            except PermissionError:
                pass
    for attempt in (socket.socketpair, lambda: socket.create_connection(("127.0.0.1", 80), 1), lambda: socket.fromfd(1, 2, 1)):
        try:
            attempt()
            return "BREACH"
        except OSError:
            pass
    raise Contained
