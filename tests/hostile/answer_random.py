# claim: chance passes as the answer
# expect: wrong
import random, secrets, uuid
def solve(x): return random.random() if x else secrets.token_bytes(8) + uuid.uuid4().bytes
