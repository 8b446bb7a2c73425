# Uses the CPU in libraries as they are built for everybody: zlib and SQLite, each called by
# the interpreter. At its end it writes the share of each in the process's CPU time to the file
# of its first argument; its second one is the seconds to use in all.
import random
import sqlite3
import sys
import time
import zlib

text = b"".join(b"%d cups of tea\n" % (n * 7919 % 1000) for n in range(20_000))
base = sqlite3.connect(":memory:")
base.execute("create table cups (n)")
base.executemany("insert into cups values (?)", ((n,) for n in range(20_000)))


def deflate():
    zlib.compress(text)


def step():
    base.execute("select sum(n * n) from cups where n % 7 < 3").fetchone()


callers = [deflate, step]
used = [0.0] * len(callers)
while sum(used) < float(sys.argv[2]):
    # In no order: a regular one would be in step with the samples.
    at = random.choices(range(len(callers)), [0.5, 0.5])[0]
    begun = time.thread_time()
    for _ in range(random.randint(1, 4)):
        callers[at]()
    used[at] += time.thread_time() - begun
with open(sys.argv[1], "w") as file:
    file.writelines(f"{each / time.process_time()}\n" for each in used)
