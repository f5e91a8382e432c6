# claim: a time zone of one's own runs code while its date is compared
# expect: not comparable
import datetime, os
class Zone(datetime.tzinfo):
    def utcoffset(self, moment): os._exit(0)
def solve(x): return datetime.datetime(2020, 1, 1, tzinfo=Zone())
