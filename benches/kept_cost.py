#!/usr/bin/env python3
"""What kept leases cost that nobody uses: benches/kept_cost.py target/release/redlockd 10000

Starts five Redis servers and one instance on free ports of loopback, and prints the processor time of both over a period
without leases, and over the same period with so many kept ones, each of which is renewed once in it. Processor time is what
the scheduler counts, so other processes on the machine change it little."""
import os
import re
import sys
import time

import servers

NODES = 5
# A third of the TTL: each lease is renewed once.
TTL_S, PERIOD_S = 180, 60
TICKS = os.sysconf("SC_CLK_TCK")


def cpu_s(process):
    with open(f"/proc/{process.pid}/stat") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def renewals(cluster):
    text = cluster.get("/metrics")
    return sum(float(n) for n in re.findall(r'redlockd_lock_kept_renewals_total\{[^}]*outcome="renewed"[^}]*\} (\S+)', text))


def watch(cluster):
    """Percent of one core: of the service, and of a node; and the renewals."""
    processes = [cluster.service, *cluster.nodes]
    before, renewed = [cpu_s(process) for process in processes], renewals(cluster)
    time.sleep(PERIOD_S)
    used = [100 * (cpu_s(process) - b) / PERIOD_S for process, b in zip(processes, before)]
    return used[0], sum(used[1:]) / NODES, renewals(cluster) - renewed


def main(binary, leases):
    with servers.cluster(binary, NODES) as cluster:
        service, node, _ = watch(cluster)
        print(f"no leases: service {service:.2f} % of a core, a node {node:.2f} %")
        granted = cluster.acquire(leases, f"ttl={TTL_S}s&keep=2h&owner=kept_cost")
        # What follows the grants is over, and the first renewals are not yet due.
        time.sleep(10)
        service, node, renewed = watch(cluster)
        each = 1e4 * PERIOD_S / max(renewed, 1)
        print(f"{granted} kept leases, {renewed:.0f} renewals: service {service:.2f} %, {service * each:.0f} us each; "
              f"a node {node:.2f} %, {node * each:.0f} us each")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
