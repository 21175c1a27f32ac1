#!/usr/bin/env python3
"""How long a node has no vote that restarts without its data: benches/restart_time.py target/release/redlockd 100000

Starts three Redis servers and one instance on free ports of loopback, acquires so many leases, kills one server, starts it
again empty, and prints the seconds until GET /nodes says that all nodes vote."""
import http.client
import json
import socket
import subprocess
import sys
import tempfile
import threading
import time

CLIENTS = 16
LEASE = "ttl=5m&owner=restart_time"
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
PATIENCE_S = 120


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def redis(port, directory):
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", directory]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


def nodes_that_vote(port):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/nodes")
        return sum(node["votes"] for node in json.loads(connection.getresponse().read())["nodes"])
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()


def wait_for_votes(port, count, began):
    while nodes_that_vote(port) != count:
        if time.monotonic() > began + PATIENCE_S:
            sys.exit(f"not within {PATIENCE_S} s")
        time.sleep(0.02)
    return time.monotonic() - began


def acquire(port, leases):
    refused = []

    def client(first):
        connection = http.client.HTTPConnection("127.0.0.1", port)
        for i in range(first, leases, CLIENTS):
            connection.request("POST", f"/locks/restart/{i}", LEASE, FORM)
            response = connection.getresponse()
            response.read()
            if response.status != 201:
                refused.append(response.status)
        connection.close()

    threads = [threading.Thread(target=client, args=(first,)) for first in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(refused)


def main(binary, leases):
    ports, port = [free_port() for _ in range(3)], free_port()
    with tempfile.TemporaryDirectory() as directory:
        servers = [redis(p, directory) for p in ports]
        settings = ["--set", "nodes=" + ",".join(f"n{i}=redis://127.0.0.1:{p}" for i, p in enumerate(ports))]
        service = None
        try:
            time.sleep(1)
            subprocess.run([binary, "init", *settings], check=True, stdout=subprocess.DEVNULL)
            serve = [binary, "serve", "--listen", f"127.0.0.1:{port}", "--data-dir", directory, *settings]
            service = subprocess.Popen(serve, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            wait_for_votes(port, 3, time.monotonic())
            refused = acquire(port, leases)
            servers[1].kill()
            servers[1].wait()
            began = time.monotonic()
            wait_for_votes(port, 2, began)
            servers[1] = redis(ports[1], directory)
            print(f"{leases - refused} leases: all nodes vote {wait_for_votes(port, 3, time.monotonic()):.2f} s after the start")
        finally:
            for process in [service, *servers]:
                if process:
                    process.kill()
                    process.wait()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
