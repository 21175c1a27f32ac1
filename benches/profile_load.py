#!/usr/bin/env python3
"""The load under which the binary counts what it executes (packaging/profiled.sh): cycles of acquire and release at 1, 16 and 64
connections, most without contention, some waited for and extended, over five Redis nodes and on an embedded one. The binary is ended by
SIGTERM, since it writes its counts at its end. `profile_load.py BINARY`."""
import asyncio
import signal
import sys
import tempfile

from service_parts import NODES, PATIENT, load, served

# Connections, cycles, and among how many names; without: each cycle has its own.
LOADS = [(64, 20_000, None), (16, 8_000, None), (64, 4_000, 8), (1, 3_000, None), (64, 20_000, None)]
PATIENCE_S = 60


def main():
    for nodes in (NODES, 0):
        with tempfile.TemporaryDirectory() as directory, served(sys.argv[1], nodes, directory, settings=PATIENT) as (service, port):
            first = 0
            for connections, cycles, names in LOADS:
                asyncio.run(load(port, connections, cycles, first, names))
                first += cycles
            service.send_signal(signal.SIGTERM)
            assert service.wait(PATIENCE_S) == 0, "the service does not end"


if __name__ == "__main__":
    main()
