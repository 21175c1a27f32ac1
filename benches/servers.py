"""What the measurements in Python share: Redis servers and an instance on free ports of loopback, and clients that acquire."""
import contextlib
import http.client
import json
import socket
import subprocess
import sys
import tempfile
import threading
import time

CLIENTS = 16
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
PATIENCE_S = 120


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def redis(port, directory):
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", directory]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


class Cluster:
    """`nodes`: the processes, `ports`: theirs, `service`: the instance, `port`: its port."""

    def wait_for_votes(self, count):
        """Seconds that it took."""
        began = time.monotonic()
        while nodes_that_vote(self.port) != count:
            if time.monotonic() > began + PATIENCE_S:
                sys.exit(f"not within {PATIENCE_S} s")
            time.sleep(0.02)
        return time.monotonic() - began

    def acquire(self, leases, form):
        """How many were granted."""
        granted = []

        def client(first):
            connection = http.client.HTTPConnection("127.0.0.1", self.port)
            for i in range(first, leases, CLIENTS):
                connection.request("POST", f"/locks/measured/{i}", form, FORM)
                response = connection.getresponse()
                response.read()
                if response.status == 201:
                    granted.append(i)
            connection.close()

        threads = [threading.Thread(target=client, args=(first,)) for first in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return len(granted)

    def get(self, path):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", path)
            return connection.getresponse().read().decode()
        finally:
            connection.close()


def nodes_that_vote(port):
    cluster = Cluster()
    cluster.port = port
    try:
        return sum(node["votes"] for node in json.loads(cluster.get("/nodes"))["nodes"])
    except (OSError, http.client.HTTPException):
        return 0


@contextlib.contextmanager
def cluster(binary, nodes):
    """A `Cluster` whose nodes all vote."""
    started = Cluster()
    started.ports, started.port = [free_port() for _ in range(nodes)], free_port()
    with tempfile.TemporaryDirectory() as directory:
        started.directory, started.service = directory, None
        started.nodes = [redis(port, directory) for port in started.ports]
        settings = ["--set", "nodes=" + ",".join(f"n{i}=redis://127.0.0.1:{p}" for i, p in enumerate(started.ports))]
        try:
            time.sleep(1)
            subprocess.run([binary, "init", *settings], check=True, stdout=subprocess.DEVNULL)
            serve = [binary, "serve", "--listen", f"127.0.0.1:{started.port}", "--data-dir", directory, *settings]
            started.service = subprocess.Popen(serve, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            started.wait_for_votes(nodes)
            yield started
        finally:
            for process in [started.service, *started.nodes]:
                if process:
                    process.kill()
                    process.wait()
