# claim: abort() leaves a core or takes the zygote along
# expect: killed: SIGABRT | killed: SIGSEGV
import os
def solve(x): os.abort()
