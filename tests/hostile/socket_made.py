# claim: a program reaches the network
# expect: error: PermissionError
import socket
def solve(x): return socket.socket()
