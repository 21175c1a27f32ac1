#!/usr/bin/env python3
"""How long a node has no vote that restarts without its data: benches/restart_time.py target/release/redlockd 100000

Starts three Redis servers and one instance on free ports of loopback, acquires so many leases, kills one server, starts it
again empty, and prints the seconds until GET /nodes says that all nodes vote."""
import sys

import servers

LEASE = "ttl=5m&owner=restart_time"


def main(binary, leases):
    with servers.cluster(binary, 3) as cluster:
        granted = cluster.acquire(leases, LEASE)
        cluster.nodes[1].kill()
        cluster.nodes[1].wait()
        cluster.wait_for_votes(2)
        cluster.nodes[1] = servers.redis(cluster.ports[1], cluster.directory)
        print(f"{granted} leases: all nodes vote {cluster.wait_for_votes(3):.2f} s after the start")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
