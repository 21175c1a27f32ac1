#!/usr/bin/env python3
"""What the queue promises, with 300 real curls: tests/acceptance.py [WAITERS] [BINARY]

Over two instances and three Redis nodes, all started and ended by this script:

1. WAITERS shell scripts wait for one name with `curl -d wait=…`; nothing of them is seen in
   `redis-cli MONITOR` while they wait; then all are served, in order within each instance.
2. The same again, and in the middle some of the waiters are killed, then a node, then an instance: every
   waiter that was not killed itself, or its instance with it, is served all the same.

Standard library only; needs redis-server, redis-cli and curl. Exits with 1 where something differs.
"""

import collections
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

WAITERS = int(sys.argv[1]) if len(sys.argv) > 1 else 300
BINARY = os.path.abspath(sys.argv[2] if len(sys.argv) > 2 else "target/release/redlockd")
WAIT = os.environ.get("WAIT", "60s")
QUIET_S = 5.0
PATIENCE_S = 120.0
ours = []


def start(args, **more):
    child = subprocess.Popen(args, stdin=subprocess.DEVNULL, **more)
    ours.append(child)
    return child


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def until(what, so):
    end = time.monotonic() + PATIENCE_S
    while not (found := so()):
        if time.monotonic() > end:
            sys.exit(f"FAILED: waited in vain: {what}")
        time.sleep(0.05)
    return found


def check(what, so):
    print(("ok      " if so else "FAILED  ") + what, flush=True)
    if not so:
        raise SystemExit(1)


def http(method, url, headers=None, data=None):
    request = urllib.request.Request(url, method=method, headers=headers or {}, data=data)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.read().decode()


def waiting(url):
    lines = http("GET", f"{url}/metrics").splitlines()
    return next(int(l.split()[1]) for l in lines if l.startswith("redlockd_lock_waiters "))


# One waiter: takes the lock, notes that it has it, notes that it is about to give it back, gives it back.
SCRIPT = """
T=$(curl -sf -H 'Accept: text/plain' -d ttl=60s -d wait=$WAIT -d owner="$ME" "$L/locks/$NAME") || exit 75
echo "start $ME" >> "$MARKS"
echo "end $ME" >> "$MARKS"
curl -sf -X DELETE -H "Lock-Token: $T" "$L/locks/$NAME" || curl -sf -X DELETE -H "Lock-Token: $T" "$OTHER/locks/$NAME"
"""


def queue(name, urls, marks):
    """Starts waiters one after the other, alternating between the instances, so that their order is known."""
    scripts = []
    for i in range(WAITERS):
        at = i % len(urls)
        env = dict(os.environ, WAIT=WAIT, ME=f"{at}-{i}", L=urls[at], OTHER=urls[1 - at], NAME=name, MARKS=str(marks))
        scripts.append((at, i, start(["sh", "-c", SCRIPT], env=env, start_new_session=True)))
        expected = i // len(urls) + 1
        until(f"waiter {i} waits", lambda: waiting(urls[at]) >= expected)
    return scripts


def pairs(marks):
    """Who had the lock, in order; fails where two had it at once."""
    lines = marks.read_text().split("\n")[:-1] if marks.exists() else []
    for start_line, end_line in zip(lines[::2], lines[1::2]):
        if start_line.split()[1] != end_line.split()[1]:
            check(f"never two at once: {start_line!r}, {end_line!r}", False)
    return [line.split()[1] for line in lines[::2]]


def in_order(served, at):
    numbers = [int(who.split("-")[1]) for who in served if who.startswith(f"{at}-")]
    return numbers == sorted(numbers)


def stop_group(child, how):
    os.killpg(child.pid, how)  # its own session: the shell and its curl


def main(dir):
    ports = [free_port() for _ in range(3)]
    nodes = []
    for port in ports:
        args = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        nodes.append(start(args, stdout=subprocess.DEVNULL))
    flags = [w for i, port in enumerate(ports) for w in ("--node", f"n{i}=redis://127.0.0.1:{port}")]
    until("the nodes are declared", lambda: subprocess.run([BINARY, "init", *flags], stderr=subprocess.DEVNULL).returncode == 0)
    listen, instances = [free_port() for _ in range(2)], []
    # 300 curls on a small machine: a node may take its time.
    for port in listen:
        more = ["--listen", f"127.0.0.1:{port}", "--log-level", "error", "--set", "node_timeout=200ms"]
        more += ["--set", "min_ttl=1s", "--set", "default_ttl=30s"]
        instances.append(start([BINARY, "serve", *flags, *more], stdout=subprocess.DEVNULL))
    urls = [f"http://127.0.0.1:{port}" for port in listen]

    def is_ready(url):
        try:
            return "ready" in http("GET", f"{url}/health/ready")
        except OSError:
            return False

    for url in urls:
        until(f"{url} is ready", lambda: is_ready(url))

    # 1. Nobody polls; all are served; in order.
    held = http("POST", f"{urls[0]}/locks/crowd", {"Accept": "text/plain"}, b"ttl=5m").strip()
    began = time.monotonic()
    marks = dir / "marks-1"
    scripts = queue("crowd", urls, marks)
    print(f"        {WAITERS} curls sit in two queues after {time.monotonic() - began:.1f} s", flush=True)
    seen = dir / "monitor"
    with open(seen, "w") as out:
        monitor = start(["redis-cli", "-p", str(ports[0]), "monitor"], stdout=out)
        time.sleep(QUIET_S)
        monitor.terminate()
        monitor.wait()
    lines = [line for line in seen.read_text().splitlines() if '"' in line and " lua]" not in line]
    about = [line for line in lines if "crowd" in line]
    words = collections.Counter(line.split('"')[1].upper() for line in lines)
    print(f"        MONITOR, {QUIET_S:.0f} s on one node: {dict(words)} (the probes of two instances, one each second)")
    check(f"none of it is about the lock that {WAITERS} wait for ({len(about)} lines)", not about and lines)
    began = time.monotonic()
    http("DELETE", f"{urls[0]}/locks/crowd", {"Lock-Token": held})
    for _, _, script in scripts:
        script.wait(timeout=PATIENCE_S)
    took = time.monotonic() - began
    served = pairs(marks)
    check(f"all {WAITERS} were served, one after the other, in {took:.1f} s", len(served) == WAITERS)
    check("each with exit code 0", all(script.returncode == 0 for _, _, script in scripts))
    check("in order within each instance", in_order(served, 0) and in_order(served, 1))

    # 2. Whatever is killed stops nobody else.
    held = http("POST", f"{urls[0]}/locks/again", {"Accept": "text/plain"}, b"ttl=5m").strip()
    marks = dir / "marks-2"
    scripts = queue("again", urls, marks)
    killed = {i for i in range(WAITERS) if i % 10 == 3}
    for _, i, script in scripts:
        if i in killed:
            stop_group(script, signal.SIGKILL)
    http("DELETE", f"{urls[0]}/locks/again", {"Lock-Token": held})
    until("some were served", lambda: len(pairs(marks)) >= WAITERS // 10)
    nodes[1].kill()
    print(f"        a node killed after {len(pairs(marks))} were served", flush=True)
    until("more were served", lambda: len(pairs(marks)) >= WAITERS // 3)
    instances[1].kill()
    print(f"        an instance killed after {len(pairs(marks))} were served", flush=True)
    for _, _, script in scripts:
        script.wait(timeout=PATIENCE_S)
    served = pairs(marks)
    left = {f"0-{i}" for at, i, _ in scripts if at == 0 and i not in killed}
    missed = left - set(served)
    check(f"every waiter of the instance that lives was served ({len(left)}; missed: {sorted(missed)})", not missed)
    gone = [s.returncode for at, i, s in scripts if at == 1 and i not in killed and f"1-{i}" not in served]
    check(f"{len(gone)} waiters of the killed instance learnt it from their curl", all(code == 75 for code in gone))
    check("in order within each instance", in_order(served, 0) and in_order(served, 1))
    print(json.dumps({"waiters": WAITERS, "seconds_to_serve_all": round(took, 2), "served_in_the_storm": len(served)}))


with tempfile.TemporaryDirectory() as directory:
    try:
        main(pathlib.Path(directory))
    finally:
        for child in ours:
            if child.poll() is None:
                child.kill()
            child.wait()
