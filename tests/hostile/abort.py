# claim: abort() leaves a core or takes the zygote along
# expect: killed: SIGABRT | killed: SIGSEGV | killed: SIGTRAP
import os
def solve(x): os.abort()
