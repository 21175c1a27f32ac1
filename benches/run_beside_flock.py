#!/usr/bin/env python3
"""What `redlockd run` adds to a command, beside flock in the same run: run_beside_flock.py [ROUNDS] [BINARY]

A service with embedded nodes and one over three Redis servers are started and ended by this script. Each
round runs `true` bare, under flock, under `redlockd run` with each of the services, in turn.
"""

import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time

ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 200
BINARY = os.path.abspath(sys.argv[2] if len(sys.argv) > 2 else "target/release/redlockd")
ours = []


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def start(args):
    ours.append(subprocess.Popen(args, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))


def service(more, dir):
    port = free_port()
    start([BINARY, "serve", "--listen", f"127.0.0.1:{port}", "--data-dir", dir, *more])
    url = f"http://127.0.0.1:{port}"
    while subprocess.run([BINARY, "health", "--url", url], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode:
        time.sleep(0.05)
    return url


def milliseconds(args):
    began = time.monotonic_ns()
    pid = os.posix_spawnp(args[0], args, os.environ)
    _, status = os.waitpid(pid, 0)
    if status:
        sys.exit(f"{args} ended with {status}")
    return (time.monotonic_ns() - began) / 1e6


def main(dir):
    flags = []
    for i in range(3):
        port = free_port()
        start(["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
        flags += ["--node", f"n{i}=redis://127.0.0.1:{port}"]
    while subprocess.run([BINARY, "init", *flags], stderr=subprocess.DEVNULL).returncode:
        time.sleep(0.05)
    embedded, redis = service([], dir), service(flags, dir)
    run = lambda url: [BINARY, "run", "--url", url, "bench/x", "--", "true"]
    kinds = {
        "true": ["true"],
        "flock": ["flock", "-n", os.path.join(dir, "x"), "true"],
        "run, embedded node": run(embedded),
        "run, three Redis nodes": run(redis),
    }
    took = {name: [] for name in kinds}
    for _ in range(ROUNDS):
        for name, args in kinds.items():
            took[name].append(milliseconds(args))
    bare = statistics.median(took["true"])
    print(f"{ROUNDS} rounds; milliseconds        median     p95   over `true`")
    for name, all in took.items():
        p95 = sorted(all)[len(all) * 95 // 100]
        print(f"{name:<28} {statistics.median(all):>8.2f} {p95:>8.2f} {statistics.median(all) - bare:>8.2f}")


with tempfile.TemporaryDirectory() as directory:
    try:
        main(directory)
    finally:
        for child in ours:
            child.kill()
            child.wait()
