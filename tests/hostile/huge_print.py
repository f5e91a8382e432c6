# claim: printing a huge int holds the parent up
# expect: timeout | error: ValueError
import sys
def solve(x):
    sys.set_int_max_str_digits(0)
    return str(7 ** 50_000_000)
