#!/usr/bin/env python3
"""How long a released lock lies idle with redlock-py: redlock_py.py WORKERS TURNS URL...

Prints the median and the 99th percentile of the gap between the call of a release and the next holder
having the lock, and the median of an uncontended lock-and-unlock, all in microseconds. Retries are
unbounded, with the library's own pause; everything else is its default. A thread per worker.
"""

import sys
import threading
import time

from redlock import Redlock

TTL_MS, HOLD_S, UNCONTENDED = 30_000, 0.002, 200
workers, turns, urls = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]


def at(values, percent):
    return sorted(values)[min(len(values) * percent // 100, len(values) - 1)] if values else 0


alone, cycles = Redlock(urls), []
for i in range(UNCONTENDED):
    began = time.monotonic_ns()
    lock = alone.lock(f"py-free-{i % 10}", TTL_MS)
    alone.unlock(lock)
    cycles.append((time.monotonic_ns() - began) // 1000)

gaps, state = [], {"done": 0, "released": 0}


def work():
    client = Redlock(urls, retry_count=10**9)
    while state["done"] < turns:
        lock = client.lock("py-busy", TTL_MS)
        now, before = time.monotonic_ns(), state["released"]
        if before:
            gaps.append((now - before) // 1000)
        time.sleep(HOLD_S)
        state["done"] += 1
        state["released"] = time.monotonic_ns()
        client.unlock(lock)


threads = [threading.Thread(target=work) for _ in range(workers)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(at(gaps, 50), at(gaps, 99), len(gaps), at(cycles, 50))
