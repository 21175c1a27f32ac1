#!/usr/bin/env python3
"""The load under which the binary counts what it executes (packaging/profiled.sh): cycles of acquire and release at 1, 16 and 64
connections, over five Redis nodes and on an embedded one. The binary is ended by SIGTERM, since it writes its counts at its end.
`profile_load.py BINARY`."""
import asyncio
import signal
import subprocess
import sys
import tempfile
import time

from servers import free_port, redis
from service_parts import NODES, is_ready, load

# Connections and cycles.
LOADS = [(64, 20_000), (16, 8_000), (1, 3_000), (64, 20_000)]
PATIENCE_S = 60


def serve(binary, count):
    """Serves the load over so many Redis nodes; none: on an embedded one."""
    ports, port = [free_port() for _ in range(count)], free_port()
    nodes = [word for number in ports for word in ("--node", f"redis://127.0.0.1:{number}")]
    with tempfile.TemporaryDirectory() as directory:
        servers = [redis(number, directory) for number in ports]
        try:
            if nodes:
                time.sleep(1)
                subprocess.run([binary, "init", *nodes], check=True, stdout=subprocess.DEVNULL)
            command = [binary, "serve", "--listen", f"127.0.0.1:{port}", "--data-dir", directory, "--log-level", "error", *nodes]
            service = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            servers.append(service)
            deadline = time.monotonic() + PATIENCE_S
            while not is_ready(port):
                assert time.monotonic() < deadline and service.poll() is None, "the service does not start"
                time.sleep(0.2)
            first = 0
            for connections, cycles in LOADS:
                asyncio.run(load(port, connections, cycles, first))
                first += cycles
            service.send_signal(signal.SIGTERM)
            assert service.wait(PATIENCE_S) == 0, "the service does not end"
        finally:
            for server in servers:
                server.kill()
                server.wait()


if __name__ == "__main__":
    for nodes in (NODES, 0):
        serve(sys.argv[1], nodes)
