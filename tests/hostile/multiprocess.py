# claim: multiprocessing starts a process
# expect: error: PermissionError | error: OSError | error: ImportError | error: FileNotFoundError | error: BlockingIOError | timeout
import multiprocessing
def solve(x):
    process = multiprocessing.get_context("fork").Process(target=print)
    process.start()
    return "BREACH"
