#!/usr/bin/env python3
"""Where the service's instructions go: those of a cycle (an acquire and a release over five nodes), by crate, and ours by module.

Counts a build with names (`cargo build --profile profiling`) by callgrind, at 1 and at 64 connections, once it is warm. Code that
the compiler moved into another function counts for the file that it comes from; that of the standard library, of libc and of the
allocator for its callers, and once more in the last two columns. `service_parts.py BINARY [FILE]`: FILE keeps callgrind's output."""
import asyncio
import collections
import contextlib
import glob
import http.client
import re
import shutil
import subprocess
import sys
import tempfile
import time

from servers import free_port, redis

NODES = 5
WARM_UP, CYCLES = 1_024, 4_096
# Under valgrind everything takes fifty times as long, and a build that counts is slower, too: no node is to be given up for that.
PATIENT = "--set min_ttl=25s --set node_timeout=10s --set guard=11s --set lock_delay=22s".split()
# What several crates do together.
GROUPS = {
    "HTTP (hyper, http, httparse)": "hyper hyper-util http http-body http-body-util httparse bytes httpdate atomic-waker want",
    "router (axum, tower)": "axum axum-core tower tower-service tower-layer matchit percent-encoding sync_wrapper pin-project-lite",
    "runtime (tokio, futures)": "tokio tokio-util mio futures-util futures-core futures-channel parking_lot parking_lot_core "
    "lock_api socket2 rustix slab",
    "log span (tracing)": "tracing tracing-core tracing-subscriber sharded-slab nu-ansi-term smallvec thread_local",
    "JSON (serde)": "serde serde_core serde_json zmij ryu",
    "SHA-256 (sha2), in software: valgrind hides the processor's": "sha2 digest block-buffer cpufeatures hybrid-array",
}
GROUP_OF = {crate: group for group, crates in GROUPS.items() for crate in crates.split()}
COPIES = re.compile(r"^_*(mem(cpy|move|set|cmp)|bcmp)")


async def load(port, connections, cycles, first, names=None):
    """So many cycles, each of a name of its own. `names`: of only so many, each waited for and extended."""
    numbers = iter(range(first, first + cycles))

    async def worker():
        reader, writer = await asyncio.open_connection("127.0.0.1", port)

        async def ask(method, number, status, header="", body=""):
            if body:
                header += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
            name = f"http-{number}" if names is None else f"shared-{number % names}"
            writer.write(f"{method} /locks/{name} HTTP/1.1\r\nhost: localhost\r\n{header}\r\n{body}".encode())
            answer = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", answer)
            answer = answer.decode() + (await reader.readexactly(int(length[1])) if length else b"").decode()
            assert answer.startswith(f"HTTP/1.1 {status}"), answer
            return answer

        for number in numbers:
            answer = await ask("POST", number, 201, body='{"ttl":"30s"}' if names is None else '{"ttl":"30s","wait":"60s"}')
            token = "lock-token: " + re.search(r'"token":"([^"]+)"', answer)[1] + "\r\n"
            if names is not None:
                await ask("PATCH", number, 200, token, '{"ttl":"60s"}')
            await ask("DELETE", number, 204, token)
        writer.close()

    await asyncio.gather(*[worker() for _ in range(connections)])


@contextlib.contextmanager
def served(binary, count, directory, under=(), settings=()):
    """The process of an instance that is ready, and its port: over so many Redis nodes; none: on an embedded one.
    `under`: what its command starts with, `settings`: its further options."""
    ports, port = [free_port() for _ in range(count)], free_port()
    options = [word for number in ports for word in ("--node", f"redis://127.0.0.1:{number}")] + list(settings)
    servers = [redis(number, directory) for number in ports]
    try:
        if servers:
            time.sleep(1)
            subprocess.run([binary, "init", *options], check=True, stdout=subprocess.DEVNULL)
        serve = [binary, "serve", "--listen", f"127.0.0.1:{port}", "--data-dir", directory, "--log-level", "error", *options]
        service = subprocess.Popen([*under, *serve], stdout=subprocess.DEVNULL)
        servers.append(service)
        deadline = time.monotonic() + 60
        while not is_ready(port):
            assert time.monotonic() < deadline and service.poll() is None, "the service does not start"
            time.sleep(0.2)
        yield service, port
    finally:
        for server in servers:
            server.kill()
            server.wait()


def counted(binary, connections, file, more=()):
    """Writes callgrind's output of `CYCLES` cycles to the file. `more`: further options of callgrind."""
    with tempfile.TemporaryDirectory() as directory:
        under = ["valgrind", "--quiet", "--tool=callgrind", f"--callgrind-out-file={directory}/out"]
        under += ["--compress-strings=no", "--compress-pos=no", *more]
        with served(binary, NODES, directory, under, PATIENT) as (service, port):
            count_once_warm(service, port, connections)
            shutil.copy(sorted(glob.glob(f"{directory}/out.*"))[0], file)


def count_once_warm(process, port, connections):
    """Lets callgrind count `CYCLES` cycles of the process that listens on the port."""
    asyncio.run(load(port, connections, WARM_UP, 0))
    control(process, "--zero")
    asyncio.run(load(port, connections, CYCLES, WARM_UP))
    control(process, "--dump")


def is_ready(port):
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        connection.request("GET", "/health/ready")
        return connection.getresponse().status == 200
    except OSError:
        return False


def control(service, order):
    subprocess.run(["callgrind_control", order, str(service.pid)], check=True, stdout=subprocess.DEVNULL)


def part_of(file):
    """The part that a source file belongs to; `None`: its callers'."""
    if crate := re.search(r"/registry/src/[^/]+/(.+?)-\d+\.\d[^/]*/", file):
        name = crate[1]
        return None if name in ("libmimalloc-sys", "mimalloc", "hashbrown") else GROUP_OF.get(name, f"{name} (crate)")
    if "/rustc/" in file or "library/" in file or "hashbrown" in file:
        return None
    if ours := re.search(r"(?:^|/)(crates/common|clients/rust|src)/(?:src/)?(.*)\.rs$", file):
        if ours[1] != "src":
            return f"ours: {ours[1]}"
        folders = ours[2].split("/")
        depth = 2 if folders[0] in ("http", "nodes") and len(folders) > 2 else 1
        return "ours: " + "/".join(folders[:depth])
    return None


def is_allocator(function, file):
    return "libmimalloc" in file or function.startswith(("mi_", "_mi_"))


def parts(file):
    """Instructions of each part, and how many of them allocate and copy."""
    own, shared, callers = collections.Counter(), collections.Counter(), collections.defaultdict(collections.Counter)
    kind, home, calls = {}, {}, False
    function = current = callee = None
    for line in open(file, errors="replace"):
        line = line.rstrip("\n")
        if line[:1].isdigit():
            count = int(line.split()[1])
            if calls:
                callers[callee][function] += count
                calls = False
            else:
                part = part_of(current) or home[function]
                (own if part else shared)[(function, part) if part else function] += count
        elif line.startswith("fl="):
            at = current = line[3:]
        elif line.startswith(("fi=", "fe=")):
            current = line[3:]
        elif line.startswith("fn="):
            function, current = line[3:], at
            home[function] = part_of(at)
            kind[function] = "allocates" if is_allocator(function, at) else "copies" if COPIES.match(function) else None
        elif line.startswith("cfn="):
            callee = line[4:]
        elif line.startswith("calls="):
            calls = True
    total, extra = collections.Counter(), collections.defaultdict(collections.Counter)
    for (_, part), count in own.items():
        total[part] += count
    # What is shared goes to its callers, by how much each of them used of it.
    for function, count in shared.items():
        for part, share in owners(function, home, callers, {function}).items():
            total[part] += count * share
            if kind[function]:
                extra[kind[function]][part] += count * share
    return total, extra


def owners(function, home, callers, seen):
    shares, of = collections.Counter(), {caller: n for caller, n in callers[function].items() if caller not in seen}
    whole = sum(of.values())
    for caller, count in of.items():
        if home.get(caller):
            shares[home[caller]] += count / whole
        else:
            for part, share in owners(caller, home, callers, seen | {caller}).items() if len(seen) < 8 else []:
                shares[part] += share * count / whole
    lost = 1 - sum(shares.values())
    if lost > 1e-9:
        shares["not known"] += lost
    return shares


def main():
    binary, keep = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None
    for connections in (64, 1):
        with tempfile.NamedTemporaryFile() as file:
            name = f"{keep}.{connections}" if keep else file.name
            counted(binary, connections, name)
            total, extra = parts(name)
        whole = sum(total.values())
        print(f"\n| at {connections}: {whole / CYCLES:,.0f} instructions per cycle | | | allocate | copy |\n|---|---:|---:|---:|---:|")
        for part, count in total.most_common():
            if count / whole >= 0.004:
                more = [f"{extra[kind][part] / CYCLES:,.0f}" for kind in ("allocates", "copies")]
                print(f"| {part} | {count / CYCLES:,.0f} | {100 * count / whole:.1f} % | {more[0]} | {more[1]} |")
        rest = sum(count for count in total.values() if count / whole < 0.004)
        print(f"| all others, each below 0.4 % | {rest / CYCLES:,.0f} | {100 * rest / whole:.1f} % | | |", flush=True)


if __name__ == "__main__":
    main()
