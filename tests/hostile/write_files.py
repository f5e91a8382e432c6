# claim: a file can be written, made or changed anywhere
# expect: error: Contained | timeout
import os, tempfile
class Contained(Exception): pass
def solve(x):
    here = os.path.dirname(os.__file__)
    for folder in ("/", "/tmp", "/dev/shm", "/var/tmp", "/empty", here):
        path = f"{folder}/written-by-a-program"
        for attempt in (lambda: open(path, "w"), lambda: open(path, "ab"), lambda: open(path, "x"), lambda: os.mkdir(path),
                        lambda: os.mkfifo(path), lambda: os.symlink("/", path), lambda: os.mknod(path), lambda: os.rename(here, path),
                        lambda: os.link(os.__file__, path), lambda: os.open(folder, os.O_RDWR | os.O_TMPFILE)):
            try:
                attempt()
                return "BREACH"
            except OSError:
                pass
    for attempt in (lambda: open(os.__file__, "r+"), lambda: os.chmod(os.__file__, 0o777), lambda: os.remove(os.__file__),
                    lambda: os.truncate(os.__file__, 0), lambda: os.utime(os.__file__), lambda: os.chown(os.__file__, 0, 0),
                    tempfile.TemporaryFile, lambda: os.setxattr(os.__file__, "user.x", b"1")):
        try:
            attempt()
            return "BREACH"
        except OSError:
            pass
    raise Contained
