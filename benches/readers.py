#!/usr/bin/env python3
"""How long many readers that wait behind a writer take to be served: benches/readers.py target/release/redlockd 500

Starts three Redis servers and two instances on free ports of loopback. A writer holds a lock for which so many readers wait, half
of them at each instance, each on a connection of its own. It prints, of five rounds each, the medians of: an uncontended cycle
(acquire and release); from the writer's release until the last reader has its answer; and until as many readers that come all
at a time have theirs, for a lock that nobody writes."""
import asyncio
import contextlib
import statistics
import subprocess
import sys
import time

import servers

NODES, ROUNDS, CYCLES = 3, 5, 50


class Caller:
    """A connection of its own."""

    async def open(self, port):
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", port)
        return self

    def send(self, method, path, form="", token=None):
        head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/x-www-form-urlencoded\r\n"
        head += f"Lock-Token: {token}\r\n" if token else ""
        self.writer.write(f"{head}Content-Length: {len(form)}\r\n\r\n{form}".encode())

    async def receive(self):
        """The status, and the lease's token if there is one."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = next((int(line[15:]) for line in head.split("\r\n") if line.startswith("content-length:")), 0)
        body = (await self.reader.readexactly(length)).decode()
        return int(head[9:12]), body.partition('"token":"')[2].partition('"')[0]

    async def ask(self, *request):
        self.send(*request)
        return await self.receive()


def median_ms(times):
    return 1e3 * statistics.median(times)


async def measure(ports, count):
    first = await Caller().open(ports[0])
    cycles, behind, at_once = [], [], []
    for i in range(CYCLES):
        began = time.perf_counter()
        status, token = await first.ask("POST", f"/locks/cycle/{i}", "ttl=30s")
        ended, _ = await first.ask("DELETE", f"/locks/cycle/{i}", "", token)
        assert (status, ended) == (201, 204), (status, ended)
        cycles.append(time.perf_counter() - began)
    readers = [await Caller().open(ports[i % 2]) for i in range(count)]
    for i in range(ROUNDS):
        _, token = await first.ask("POST", f"/locks/behind/{i}", "ttl=120s")
        for reader in readers:
            reader.send("POST", f"/locks/behind/{i}", "mode=shared&ttl=120s&wait=100s")
        while await waiting(ports) < count:
            await asyncio.sleep(0.05)
        began = time.perf_counter()
        await first.ask("DELETE", f"/locks/behind/{i}", "", token)
        answers = await asyncio.gather(*[reader.receive() for reader in readers])
        behind.append(time.perf_counter() - began)
        assert all(status == 201 for status, _ in answers)
        began = time.perf_counter()
        for reader in readers:
            reader.send("POST", f"/locks/free/{i}", "mode=shared&ttl=120s&wait=100s")
        answers = await asyncio.gather(*[reader.receive() for reader in readers])
        at_once.append(time.perf_counter() - began)
        assert all(status == 201 for status, _ in answers)
    print(f"a cycle {median_ms(cycles):.1f} ms; {count} readers behind a writer {median_ms(behind):.0f} ms "
          f"(at most {1e3 * max(behind):.0f}), all at a time {median_ms(at_once):.0f} ms (at most {1e3 * max(at_once):.0f})")


async def waiting(ports):
    """Who waits, by the metrics of both."""
    cluster, total = servers.Cluster(), 0
    for cluster.port in ports:
        text = await asyncio.to_thread(cluster.get, "/metrics")
        total += sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith("redlockd_lock_waiters "))
    return total


def main(binary, count):
    with servers.cluster(binary, NODES) as cluster, contextlib.ExitStack() as stack:
        port = servers.free_port()
        nodes = "nodes=" + ",".join(f"n{i}=redis://127.0.0.1:{p}" for i, p in enumerate(cluster.ports))
        other = subprocess.Popen([binary, "serve", "--listen", f"127.0.0.1:{port}", "--set", nodes],
                                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        stack.callback(lambda: (other.kill(), other.wait()))
        second = servers.Cluster()
        second.port = port
        second.wait_for_votes(NODES)
        asyncio.run(measure([cluster.port, port], count))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
