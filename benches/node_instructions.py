#!/usr/bin/env python3
"""Instructions of redis-server for each acquire and each release, alone and 16 in a batch, by callgrind: what a noisy machine
does not move. Each figure is the difference of two runs of fresh names, beside SET NX PX. The commands are those of
src/protocol/acquire and src/protocol/release; every reply is checked, since a script that refuses is cheap."""

import hashlib
import pathlib
import re
import socket
import subprocess
import tempfile
import time

PROTOCOL = pathlib.Path(__file__).resolve().parent.parent / "src/protocol"
ACQUIRE = ["acquire/plain.lua", "vote.lua", "ended.lua", "acquire/acquire.lua", "blocks.lua", "members.lua", "acquire/beside.lua"]
RELEASE = ["release/plain.lua", "ended.lua", "release/release.lua", "members.lua", "release/member.lua"]
RUN, CLUSTER, VIEW, QUARANTINE_MS = "a" * 80, "4." + "c" * 16, "0" * 31 + "1", 305_000
GUARD_US, FENCE_TTL_MS = 500_000_000, 3_600_000  # wide: callgrind is slow
FEW, MANY, AT_ONCE = 960, 4_800, 48
OWN_TOKEN = "acquire with the caller's own token"


class Redis:
    """A server under callgrind, and a connection to it."""

    def __init__(self, directory):
        self.path, self.read = f"{directory}/socket", b""
        command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={directory}/out", "redis-server", "--port", "0"]
        command += ["--unixsocket", self.path, "--save", "", "--appendonly", "no", "--hz", "1", "--dynamic-hz", "no"]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.socket = socket.socket(socket.AF_UNIX)
        deadline = time.monotonic() + 60
        while self.socket.connect_ex(self.path) != 0:
            assert time.monotonic() < deadline, "the server does not start"
            time.sleep(0.05)

    def send(self, commands):
        packed = b""
        for words in commands:
            packed += b"*%d\r\n" % len(words)
            for word in (str(word).encode() for word in words):
                packed += b"$%d\r\n%s\r\n" % (len(word), word)
        self.socket.sendall(packed)

    def line(self):
        while b"\r\n" not in self.read:
            self.read += self.socket.recv(65_536)
        line, self.read = self.read.split(b"\r\n", 1)
        return line

    def reply(self):
        line = self.line()
        kind, text = line[:1], line[1:]
        if kind == b":":
            return int(text)
        if kind == b"$":
            while len(self.read) < int(text) + 2:
                self.read += self.socket.recv(65_536)
            value, self.read = self.read[: int(text)], self.read[int(text) + 2 :]
            return value.decode()
        if kind == b"*":
            return [self.reply() for _ in range(int(text))]
        assert kind == b"+", line
        return text.decode()

    def ask(self, *words):
        self.send([words])
        return self.reply()

    def ask_all(self, commands, is_good):
        for first in range(0, len(commands), AT_ONCE):
            some = commands[first : first + AT_ONCE]
            self.send(some)
            for _ in some:
                reply = self.reply()
                assert is_good(reply), reply

    def instructions(self):
        self.send([["SHUTDOWN", "NOSAVE"]])
        return int(re.findall(r"Collected : (\d+)", self.process.communicate()[1])[0])


def names(count):
    hashes = (hashlib.sha256(str(number).encode()).hexdigest() for number in range(count))
    return [(f"bench/name/{number}", token, "a" + token[:16]) for number, token in enumerate(hashes)]


def acquire(sha, batch, now, again=""):
    keys, words = [], [f"{RUN}|{CLUSTER}|{VIEW}", GUARD_US, FENCE_TTL_MS, QUARANTINE_MS, again]
    for place, (name, token, attempt) in enumerate(batch):
        sent = now + place
        keys.append(name)
        words += [sent, 31_000, f'{token}|000000|30000|{sent}|{attempt},|{{"o":"bench"}}']
    return ["EVALSHA", sha, len(keys), *keys, *words]


def release(sha, batch):
    keys = [key for name, token, _ in batch for key in (name, f"redlockd:gone:{token}:{name}")]
    return ["EVALSHA", sha, len(keys), *keys, "released"]


def run(kind, batch, count):
    with tempfile.TemporaryDirectory() as directory:
        redis = Redis(directory)
        now = time.time_ns() // 1_000
        marker = {"pass": f"{RUN}|{CLUSTER}|{VIEW}", "run": RUN, "st": "a", "cfg": CLUSTER, "proto": 4, "view": VIEW, "seen": now}
        marker |= {"hw": now, "base": now, "ask": QUARANTINE_MS, "qms": QUARANTINE_MS, "roll": now + 10**12}
        redis.ask("HSET", "redlockd:meta", *(word for pair in marker.items() for word in pair))
        load = lambda files: redis.ask("SCRIPT", "LOAD", "".join((PROTOCOL / file).read_text() for file in files))
        acquiring, releasing = load(ACQUIRE), load(RELEASE)
        every = names(count)
        batches = [every[first : first + batch] for first in range(0, count, batch)]
        if kind == "SET NX PX":
            redis.ask_all([["SET", name, token, "NX", "PX", 30_000] for name, token, _ in every], lambda r: r == "OK")
        else:
            # Each is sent later than the one before: an earlier one may need another fence, for which the script reads the last ones.
            now, is_fence = time.time_ns() // 1_000, lambda reply: isinstance(reply, (int, str))
            is_granted = lambda reply: is_fence(reply) or reply and all(map(is_fence, reply))
            again = "1 0 0" if kind == OWN_TOKEN else ""
            sent = [acquire(acquiring, each, now + 100 * place, again) for place, each in enumerate(batches)]
            redis.ask_all(sent, is_granted)
        if kind == "release":
            redis.ask_all([release(releasing, batch) for batch in batches], lambda reply: reply == "1" or set(reply) == {1})
        return redis.instructions()


def main():
    each = lambda kind, batch: (run(kind, batch, MANY) - run(kind, batch, FEW)) / (MANY - FEW)
    least = each("SET NX PX", 1)
    print(f"| request | instructions | of SET NX PX |\n|---|---:|---:|\n| SET NX PX | {least:,.0f} | 1 |")
    for batch, words in [(1, "alone"), (16, "16 in a batch")]:
        acquires = each("acquire", batch)
        for kind, cost in [("acquire", acquires), ("release", each("release", batch) - acquires), (OWN_TOKEN, each(OWN_TOKEN, batch))]:
            print(f"| {kind}, {words} | {cost:,.0f} | {cost / least:.1f} |", flush=True)


if __name__ == "__main__":
    main()
