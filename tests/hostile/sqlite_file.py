# claim: a library's C code writes a file
# expect: error: ImportError | error: ModuleNotFoundError | error: OperationalError | error: PermissionError | timeout
import sqlite3
def solve(x):
    sqlite3.connect("/tmp/written-by-a-program.db").execute("create table t (a)")
    return "BREACH"
