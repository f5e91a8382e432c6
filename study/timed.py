"""Run a script and append its CPU seconds and its command to a file: python study/timed.py FILE script.py ARGUMENTS"""
import resource
import subprocess
import sys
from pathlib import Path

file, *command = sys.argv[1:]
code = subprocess.call([sys.executable, *command])
used = resource.getrusage(resource.RUSAGE_CHILDREN)
if code == 0:
    Path(file).parent.mkdir(parents=True, exist_ok=True)
    with open(file, "a", encoding="utf-8") as lines:
        lines.write(f"{used.ru_utime + used.ru_stime:.1f}\t{' '.join(command)}\n")
sys.exit(code)
