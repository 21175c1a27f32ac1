#!/usr/bin/env python3
"""An operator's maintenance day under the load of a build farm: tests/maintenance.py target/release/redlockd

Five Redis servers and two instances on free ports of loopback. Every node is restarted without its data as `docs/operating.md`
says (`nodes --margin 1`, restart, `nodes --wait NAME --votes`), one is replaced by a new server, guard, lock delay and key template
are changed, and one instance is started with the configuration from before. Meanwhile jobs acquire, extend and release at both
instances, and a lease of four minutes that nobody renews must keep all others out. Prints what was refused for how long, and
exits with 1 if anything was refused for more than a second, was held twice, or had a fence that did not rise."""
import http.client
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "benches"))
import servers  # noqa: E402

JOBS, NAMES = 24, 60
LONGEST_REFUSAL_S = 1.0


class Farm:
    """Jobs that share names; each records how long it was refused at a stretch."""

    def __init__(self, ports):
        self.ports, self.stop = ports, threading.Event()
        self.lock, self.done, self.refused, self.faults = threading.Lock(), 0, [], []
        self.fences, self.holders = {}, {}
        self.threads = [threading.Thread(target=self.job, args=(i,)) for i in range(JOBS)]

    def ask(self, i, method, path, form="", token=None):
        """Status and answer. Asks the other instance if one does not answer, as the clients do; notes for how long."""
        began, turn, refusals, why = None, i, 0, ""
        while True:
            port = self.ports[turn % len(self.ports)]
            try:
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
                headers = servers.FORM | ({"Lock-Token": token} if token else {})
                connection.request(method, path, form, headers)
                response = connection.getresponse()
                status, body = response.status, response.read().decode()
                connection.close()
            except (OSError, http.client.HTTPException):
                status, body = 0, ""
            now = time.monotonic()
            if status == 0 or status >= 500:
                began, refusals, turn, why = began or now, refusals + 1, turn + 1, body
                if now - began > 30:
                    self.fail(f"{method} {path}: {status} for 30 s: {body}")
                    return status, {}
                time.sleep(0.02)
                continue
            if began:
                with self.lock:
                    self.refused.append((now - began, refusals, f"{method} {path}: {why or 'no answer'}"))
            return status, json.loads(body) if body else {}

    def fail(self, text):
        with self.lock:
            self.faults.append(text)

    def job(self, i):
        turn = 0
        while not self.stop.is_set():
            name = (i * 7 + turn * 13) % NAMES
            turn += 1
            status, lease = self.ask(i, "POST", f"/locks/farm/{name}", f"ttl=10s&wait=20s&owner=job-{i}")
            if status == 423:
                continue
            if status != 201:
                self.fail(f"job {i} acquires farm/{name}: {status} {lease}")
                continue
            with self.lock:
                if self.holders.get(name) is not None:
                    self.faults.append(f"farm/{name} is held by {self.holders[name]} and by {i}")
                self.holders[name] = i
                if lease["fence"] <= self.fences.get(name, 0):
                    self.faults.append(f"farm/{name}: fence {lease['fence']} after {self.fences[name]}")
                self.fences[name] = lease["fence"]
            time.sleep(0.05)
            status, answer = self.ask(i, "PATCH", f"/locks/farm/{name}", "ttl=10s", lease["token"])
            if status != 200:
                self.fail(f"job {i} extends farm/{name}: {status} {answer}")
            with self.lock:
                self.holders[name] = None
                self.done += 1
            status, answer = self.ask(i, "DELETE", f"/locks/farm/{name}", "", lease["token"])
            # A release that was refused as unknown may have ended the lease: asked again, it is gone by this token.
            if status != 204 and answer.get("reason") != "released":
                self.fail(f"job {i} releases farm/{name}: {status} {answer}")


def main(binary):
    ports, urls = [servers.free_port() for _ in range(6)], [servers.free_port() for _ in range(2)]
    listed = lambda last: "nodes=" + ",".join(f"n{i}=redis://127.0.0.1:{p}" for i, p in enumerate(ports[:4] + [last]))
    with tempfile.TemporaryDirectory() as directory:
        nodes = [servers.redis(port, directory) for port in ports]
        yesterday, instances = listed(ports[4]), []
        serve = lambda k, setting: subprocess.Popen(
            [binary, "serve", "--listen", f"127.0.0.1:{urls[k]}", "--data-dir", f"{directory}/{k}", "--set", setting],
            stdout=subprocess.DEVNULL, stderr=open(f"{directory}/{k}.log", "a"))
        farm = Farm(urls)
        try:
            time.sleep(1)
            subprocess.run([binary, "init", "--set", yesterday], check=True, stdout=subprocess.DEVNULL)
            for k in range(2):
                os.mkdir(f"{directory}/{k}")
                instances.append(serve(k, yesterday))
            for port in urls:
                cluster = servers.Cluster()
                cluster.port = port
                cluster.wait_for_votes(5)
            operator = lambda *words: subprocess.run(
                [binary, *words, "--url", f"http://127.0.0.1:{urls[0]}"], check=True, stdout=subprocess.DEVNULL)
            status, held = farm.ask(0, "POST", "/locks/release/train", "ttl=4m&owner=nobody-renews")
            assert status == 201, held
            for thread in farm.threads:
                thread.start()
            began = time.monotonic()
            said = lambda what: print(f"{time.monotonic() - began:6.1f} s  {what}; {farm.done} jobs done", flush=True)

            def restart(k):
                operator("nodes", "--margin", "1", "--timeout", "1m")
                nodes[k].terminate()
                nodes[k].wait()
                nodes[k] = servers.redis(ports[k], directory)
                operator("nodes", "--wait", f"n{k}", "--votes", "--timeout", "1m")

            for k in range(5):
                restart(k)
                said(f"n{k} was restarted")
            operator("nodes", "replace", "--reason", "a new machine", "n4", f"redis://127.0.0.1:{ports[5]}")
            nodes[4].terminate()
            nodes[4].wait()
            said("n4 is another server, and the former one is off")
            operator("nodes", "settings", "--reason", "clocks of two sites", "--guard", "700ms", "--lock-delay", "2s")
            said("guard and lock delay are larger")
            operator("nodes", "settings", "--reason", "a prefix for all keys", "--key-template", "lock:{resource}")
            said("all leases have other keys")
            instances[1].terminate()
            instances[1].wait()
            instances[1] = serve(1, yesterday)
            cluster.port = urls[1]
            cluster.wait_for_votes(5)
            said("the second instance was started with yesterday's configuration")
            for k in range(4):
                restart(k)
            said("four nodes were restarted once more")
            status, answer = farm.ask(1, "POST", "/locks/release/train", "ttl=10s")
            if status != 423:
                farm.fail(f"the lease of four minutes did not keep others out: {status} {answer}")
            if farm.ask(1, "DELETE", "/locks/release/train", "", held["token"])[0] != 204:
                farm.fail("the lease of four minutes was lost")
        finally:
            farm.stop.set()
            for thread in farm.threads:
                if thread.is_alive():
                    thread.join()
            for process in [*instances, *nodes]:
                process.kill()
                process.wait()
    longest = max(farm.refused, default=(0, 0, "nothing"))
    print(f"{farm.done} jobs; {sum(n for _, n, _ in farm.refused)} requests were refused and asked again; "
          f"the longest for {longest[0]:.2f} s ({longest[2]})")
    for fault in farm.faults[:20]:
        print("FAULT:", fault)
    return 1 if farm.faults or longest[0] > LONGEST_REFUSAL_S or not farm.done else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
