#!/usr/bin/env python3
"""What every client of redlockd must do when things go wrong, run against a real service.

    clients/conformance.py [--service PATH] COMMAND...

COMMAND is a driver of the client under test: it reads one JSON command per line and writes one JSON event per line.

    {"do":"acquire","name":N,"ttl_ms":T,"wait_ms":W}   acquired {fence, valid_for_ms, slot} | refused {kind}
        and perhaps "mode":"shared" or "limit":L,      (slot: of a permit, else null or absent)
        "keep_ms":K, or instead of the name
        "names":[N,...]                                (with "fences":[F,...] in their order)
    {"do":"check"}                                     valid {valid_for_ms} | not-valid
    {"do":"release"}                                   released | not-valid (it was lost before) | refused {kind}
    {"do":"leave"}                                     left: renewed no more, and not released
    {"do":"ask","name":N,"keep_ms":K,"wait_ms":W}      asked {state, ticket} | refused {kind}: a ticket; its state is
                                                       waiting, or accepted (ticket: null) where the lock was free
    {"do":"await","wait_ms":W}                         granted {fences} | waiting | over {by} | refused {kind}
    {"do":"end"}                                       ended: given up, or released | refused {kind}

Without a command, once per lease: lost {why}. `kind` is held, unavailable, lost or refused. The driver reads the
instances' URLs from REDLOCKD_URL, as every client does.

The script starts one redis-server and two instances of the service on free ports of loopback, and ends them. It needs a C
compiler: a suspend of the machine is played by a library for LD_PRELOAD (clients/suspend.c), so the client must be linked
dynamically to the C library, as interpreters and Rust programs are and programs of Go often are not.
"""

import argparse
import json
import os
import queue
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

#: Seconds within which everything that is waited for must happen.
PATIENCE = 20.0
#: A try of a renewal has a twelfth of it: of 1,500 that was too little on two cores with 36 runnable processes.
TTL_MS = 3000
#: By how many seconds a wait at the third instance may be longer than its caller's. Passing over two that hang costs more, so that a
#: client which asks each for the whole wait is found out.
WAIT_LATE = 0.5
#: Milliseconds after which a client has asked for the first time whether the instance where it waits is alive.
ASKED_ONCE = 2000
#: Seconds for which the machine was suspended, and within which a client notices that: it looks at its clock meanwhile.
SUSPENDED = 25
NOTICED = 5.0
#: Seconds within which an instance serves the tickets of one that was killed, and what a busy machine needs beyond that.
TAKEN_OVER = 15.0 + PATIENCE


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def until(what, condition):
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.01)
    raise AssertionError(f"{what}: not within {PATIENCE} s")


class World:
    """One Redis node and two instances over it."""

    def __init__(self, service):
        self.service, self.dir = service, tempfile.mkdtemp(prefix="redlockd-conformance-")
        port = free_port()
        self.node = f"n=redis://127.0.0.1:{port}"
        options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", self.dir, "--loglevel", "warning"]
        self.redis = subprocess.Popen(["redis-server", *options], stdout=subprocess.DEVNULL)
        until("redis", lambda: self.redis_answers(port))
        subprocess.run([service, "init", "--node", self.node], check=True, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL, timeout=PATIENCE)
        self.ports = [free_port(), free_port()]
        self.instances = [self.start(port) for port in self.ports]
        for index in (0, 1):
            self.ready(index)

    @staticmethod
    def redis_answers(port):
        try:
            with socket.create_connection(("127.0.0.1", port), 1) as s:
                s.sendall(b"PING\r\n")
                return s.recv(7) == b"+PONG\r\n"
        except OSError:
            return False

    def start(self, port):
        command = [self.service, "serve", "--listen", f"127.0.0.1:{port}", "--node", self.node,
                   "--set", "min_ttl=100ms", "--log-level", "error"]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def ready(self, index):
        until("an instance", lambda: self.call(index, "/health/ready")[0] == 200)

    def freeze(self, *indices):
        for index in indices:
            self.instances[index].send_signal(signal.SIGSTOP)

    def thaw(self):
        for process in self.instances:
            process.send_signal(signal.SIGCONT)

    def mend(self):
        """For the next scenario, whatever this one left."""
        self.thaw()
        for index, process in enumerate(self.instances):
            if process.poll() is not None:
                self.instances[index] = self.start(self.ports[index])
            self.ready(index)
        for name in "wxy":
            self.call(1, f"/locks/{name}?force=now&reason=conformance", "DELETE")

    def waiter(self, index, name):
        """A waiter of this instance."""
        lock = json.loads(self.call(index, f"/locks/{name}")[1] or b"{}")
        return next((one for one in lock.get("waiters", []) if one["instance"] == lock["answered_by"]), None)

    def call(self, index, path, method="GET"):
        request = urllib.request.Request(f"http://127.0.0.1:{self.ports[index]}{path}", method=method)
        try:
            with urllib.request.urlopen(request, timeout=2) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()
        except OSError:
            return 0, b""

    def urls(self):
        return ",".join(f"http://127.0.0.1:{port}" for port in self.ports)

    def close(self):
        for process in [*self.instances, self.redis]:
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()
        shutil.rmtree(self.dir, ignore_errors=True)


class Driver:
    """The client under test, in a process of its own."""

    def __init__(self, command, world, env=()):
        env = {**os.environ, "REDLOCKD_URL": world.urls(), **dict(env)}
        self.command = command
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, text=True)
        self.answers, self.losses = queue.Queue(), queue.Queue()
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            if not line.startswith("{"):
                continue  # not the driver's: a test harness announces its tests
            event = json.loads(line)
            event["at"] = time.monotonic()
            (self.losses if event["event"] == "lost" else self.answers).put(event)

    def begin(self, what, **members):
        self.process.stdin.write(json.dumps({"do": what, **members}) + "\n")
        self.process.stdin.flush()

    def do(self, what, **members):
        self.begin(what, **members)
        return self.answers.get(timeout=PATIENCE)

    def acquire(self, name, ttl_ms=TTL_MS, wait_ms=0, **how):
        what = {"name": name} if isinstance(name, str) else {"names": name}
        return self.do("acquire", **what, ttl_ms=ttl_ms, wait_ms=wait_ms, **how)

    def lost(self):
        return self.losses.get(timeout=PATIENCE)

    def close(self):
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()


class Suspend:
    """What makes the clocks of a driver jump, as a suspend of the machine does."""

    def __init__(self, world):
        self.library, self.jump = os.path.join(world.dir, "suspend.so"), os.path.join(world.dir, "jump")
        source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "suspend.c")
        subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", self.library, source], check=True)
        self.write(0)

    def write(self, seconds):
        with open(self.jump, "r+b" if os.path.exists(self.jump) else "wb") as file:
            file.write(struct.pack("=q", seconds * 1000))

    def driver(self, command, world):
        return Driver(command, world, {"LD_PRELOAD": self.library, "CLOCKSHIM": self.jump})

    def reaches(self, driver):
        with open(f"/proc/{driver.process.pid}/maps") as file:
            return self.library in file.read()


def expect(event, *kinds):
    assert event["event"] in kinds, f"{event}, but one of {kinds} was expected"
    return event


def holds_and_excludes(world, a, b):
    """A lease is renewed for as long as it is held, and nobody else gets it."""
    first = expect(a.acquire("x"), "acquired")
    end, held = time.monotonic() + 3 * TTL_MS / 1000, 0
    while time.monotonic() < end:
        # On a busy machine the nodes may be late: nobody gets anything then.
        refused = expect(b.acquire("x"), "refused")
        assert refused["kind"] in ("held", "unavailable"), refused
        held += refused["kind"] == "held"
        expect(a.do("check"), "valid")
    assert held > 0, "it was never refused for its holder"
    expect(a.do("release"), "released")
    second = expect(b.acquire("x"), "acquired")
    assert second["fence"] > first["fence"], "a later lease has a larger fence"
    expect(b.do("release"), "released")


def waits_for_a_release(world, a, b):
    """A waiter gets the lock when it is released."""
    expect(a.acquire("x"), "acquired")
    b.process.stdin.write(json.dumps({"do": "acquire", "name": "x", "ttl_ms": TTL_MS, "wait_ms": 15000}) + "\n")
    b.process.stdin.flush()
    until("a waiter", lambda: any(json.loads(world.call(i, "/locks/x")[1] or b"{}").get("waiters") for i in (0, 1)))
    expect(a.do("release"), "released")
    expect(b.answers.get(timeout=PATIENCE), "acquired")
    expect(b.do("release"), "released")


def notices_a_frozen_service_in_time(world, a, b):
    """Where no instance answers, the lease counts as lost before its deadline."""
    held = expect(a.acquire("x"), "acquired")
    deadline = held["at"] + held["valid_for_ms"] / 1000 + TTL_MS / 1000  # one renewal may have been under way
    world.freeze(0, 1)
    lost = a.lost()
    expect(a.do("check"), "not-valid")
    world.thaw()
    assert lost["at"] < deadline, "the loss was reported after the deadline"
    expect(a.do("release"), "released", "not-valid")


def survives_an_instance(world, a, b):
    """Where one instance dies, the next one is asked, and the lease is kept."""
    expect(a.acquire("x"), "acquired")
    world.instances[0].kill()
    world.instances[0].wait()
    end = time.monotonic() + 2 * TTL_MS / 1000
    while time.monotonic() < end:
        expect(a.do("check"), "valid")
        time.sleep(0.05)
    world.instances[0] = world.start(world.ports[0])
    world.ready(0)
    expect(a.do("release"), "released")


def passes_over_an_instance_that_hangs(world, a, b):
    """One of two instances accepts connections and says nothing: leases are renewed, acquired and waited for at the other one."""
    for frozen in (0, 1):
        expect(b.acquire("x"), "acquired")
        world.freeze(frozen)
        a.begin("acquire", name="x", ttl_ms=TTL_MS, wait_ms=60000)
        until("a waiter", lambda: world.waiter(1 - frozen, "x"))
        expect(b.do("check"), "valid")
        expect(b.do("release"), "released")
        expect(a.answers.get(timeout=PATIENCE), "acquired")
        world.thaw()
        expect(a.do("release"), "released")


def leaves_an_instance_that_freezes_under_a_waiter(world, a, b):
    """An instance freezes in which a request waits already: the wait goes on at another one, also if that was passed over before. The
    request that the first one still has when it wakes changes nothing."""
    wait_ms = 60000

    def begins(name):  # one for each part: a woken instance may keep the place of a caller that has left
        # While its instance is frozen each of its renewals is late.
        expect(b.acquire(name, ttl_ms=4 * TTL_MS), "acquired")
        a.begin("acquire", name=name, ttl_ms=TTL_MS, wait_ms=wait_ms)

    def moves(name, frozen):
        # Longer than until the first question whether the instance is alive, which finds it so.
        until("an older waiter", lambda: (world.waiter(frozen, name) or {"left_ms": wait_ms})["left_ms"] < wait_ms - ASKED_ONCE)
        world.freeze(frozen)
        until("a waiter at the other instance", lambda: world.waiter(1 - frozen, name))
        expect(b.do("check"), "valid")
        expect(b.do("release"), "released")
        held = expect(a.answers.get(timeout=PATIENCE), "acquired")
        world.thaw()
        end = time.monotonic() + 2 * TTL_MS / 1000
        while time.monotonic() < end:
            assert expect(b.acquire(name), "refused")["kind"] in ("held", "unavailable")
            expect(a.do("check"), "valid")
        shown = [until("a holder", lambda i=i: json.loads(world.call(i, f"/locks/{name}")[1] or b"{}").get("holders")) for i in (0, 1)]
        fences = [[one["fence"] for one in each] for each in shown]
        assert fences == [[held["fence"]]] * 2, f"the holders have {fences}, and the client {held['fence']}"
        expect(a.do("release"), "released")

    # The other way round first: the instance that freezes is the last one to be asked, as the first was passed over.
    world.freeze(0)
    begins("frozen-last")
    until("a waiter", lambda: world.waiter(1, "frozen-last"))
    world.thaw()
    moves("frozen-last", 1)
    begins("frozen-first")
    # At whichever answered its last renewal.
    moves("frozen-first", until("a waiter", lambda: [i for i in (0, 1) if world.waiter(i, "frozen-first")])[0])


def waits_no_longer_than_asked(world, a, b):
    """What instances that hang cost is part of the wait: the next one is asked for what is left of it."""
    # A name of its own: an instance that was frozen may have kept the place of a caller of the scenario before.
    silent = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    urls = [f"http://127.0.0.1:{one.getsockname()[1]}" for one in silent]
    waiting = Driver(a.command, world, {"REDLOCKD_URL": ",".join([*urls, world.urls()])})
    try:
        expect(b.acquire("w"), "acquired")
        wait_ms, begun = 8000, time.monotonic()
        waiting.begin("acquire", name="w", ttl_ms=TTL_MS, wait_ms=wait_ms)
        waiter = until("a waiter", lambda: world.waiter(0, "w"))
        late = time.monotonic() + waiter["left_ms"] / 1000 - begun - wait_ms / 1000
        assert late < WAIT_LATE, f"it waits for {late:.1f} s longer than its caller"
        expect(b.do("release"), "released")
        expect(waiting.answers.get(timeout=PATIENCE), "acquired")
        expect(waiting.do("release"), "released")
    finally:
        waiting.close()
        for one in silent:
            one.close()


def survives_a_restart_of_all_instances(world, a, b):
    """Where all instances are restarted within one lease, it goes on: its state is on the nodes."""
    ttl_ms = 12000
    held = expect(a.acquire("x", ttl_ms=ttl_ms), "acquired")
    for process in world.instances:
        process.terminate()
    for process in world.instances:
        process.wait(timeout=PATIENCE)
    # A renewal finds nobody.
    while time.monotonic() < held["at"] + ttl_ms / 1000 / 3 + 0.5:
        expect(a.do("check"), "valid")
        time.sleep(0.05)
    world.instances = [world.start(port) for port in world.ports]
    while time.monotonic() < held["at"] + ttl_ms / 1000 + 1:
        expect(a.do("check"), "valid")
        time.sleep(0.05)
    for index in (0, 1):
        world.ready(index)
    assert json.loads(world.call(0, "/locks/x")[1])["holders"][0]["fence"] == held["fence"], "it is another lease"
    assert expect(b.acquire("x"), "refused")["kind"] == "held"
    expect(a.do("release"), "released")


def survives_a_short_outage_of_the_nodes(world, a, b):
    """A renewal that fails (503) is tried again before the deadline."""
    ttl_ms = 6000
    expect(a.acquire("x", ttl_ms=ttl_ms), "acquired")
    world.redis.send_signal(signal.SIGSTOP)
    time.sleep(ttl_ms / 1000 / 2)
    world.redis.send_signal(signal.SIGCONT)
    end = time.monotonic() + ttl_ms / 1000
    while time.monotonic() < end:
        expect(a.do("check"), "valid")
        time.sleep(0.05)
    expect(a.do("release"), "released")


def notices_a_forced_end(world, a, b):
    """A lease that an operator ended (410 at the next renewal) is lost."""
    expect(a.acquire("x"), "acquired")
    status, _ = world.call(1, "/locks/x?force=now&reason=conformance", "DELETE")
    assert status == 204, f"force answered {status}"
    a.lost()
    expect(a.do("check"), "not-valid")
    expect(a.do("release"), "not-valid", "refused")


def does_not_trust_time_that_stood_still(world, a, b):
    """A client that was stopped for longer than its TTL does not believe in its lease."""
    expect(a.acquire("x"), "acquired")
    a.process.send_signal(signal.SIGSTOP)
    until("the lease's end", lambda: world.call(0, "/locks/x")[0] == 404)
    expect(b.acquire("x", wait_ms=5000), "acquired")
    a.process.send_signal(signal.SIGCONT)
    expect(a.do("check"), "not-valid")
    expect(b.do("check"), "valid")
    a.lost()
    expect(a.do("release"), "not-valid", "refused")
    expect(b.do("release"), "released")


def notices_a_suspend(world, a, b):
    """A machine was suspended: its monotonic clock and timers did not see that time, and the lease did. Nobody can be asked yet."""
    suspend = Suspend(world)
    slept = suspend.driver(a.command, world)
    try:
        expect(slept.acquire("x", ttl_ms=(SUSPENDED - 5) * 1000), "acquired")
        assert suspend.reaches(slept), "the driver is not linked dynamically: no suspend can be played"
        expect(slept.do("check"), "valid")
        world.freeze(0, 1)
        suspend.write(SUSPENDED)
        resumed = time.monotonic()
        expect(slept.do("check"), "not-valid")
        late = slept.lost()["at"] - resumed
        world.thaw()
        assert late < NOTICED, f"the loss was reported {late:.1f} s after the end of the suspend"
        # In truth no time has passed, and the service has the lease still.
        expect(slept.do("release"), "released", "not-valid")
    finally:
        world.thaw()
        slept.close()


def leaves_nothing_behind(world, a, b):
    """A wait that ran out, and a client that is killed, leave no lock."""
    expect(a.acquire("x"), "acquired")
    assert expect(b.acquire("x", wait_ms=1200), "refused")["kind"] == "held"
    expect(a.do("release"), "released")
    until("a free lock", lambda: world.call(0, "/locks/x")[0] == 404)


def shares(world, a, b):
    """Shared leases are held together, permits with different numbers, and neither beside another mode."""
    first = expect(a.acquire("x", mode="shared"), "acquired")
    assert expect(b.acquire("x"), "refused")["kind"] == "held"
    second = expect(b.acquire("x", mode="shared"), "acquired")
    assert first["fence"] != second["fence"] and first.get("slot") is None
    expect(a.do("release"), "released")
    expect(b.do("check"), "valid")
    expect(b.do("release"), "released")
    slots = {expect(driver.acquire("x", limit=2), "acquired")["slot"] for driver in (a, b)}
    assert slots == {0, 1}, f"the numbers are {slots}"
    for driver in (a, b):
        expect(driver.do("release"), "released")


def takes_all_or_none(world, a, b):
    """Several locks are granted together or not at all, renewed together, and lost as soon as one of them is."""
    expect(b.acquire("y"), "acquired")
    assert expect(a.acquire(["x", "y"]), "refused")["kind"] == "held"
    assert world.call(0, "/locks/x")[0] == 404, "a refused set has taken one of its locks"
    expect(b.do("release"), "released")
    held = expect(a.acquire(["x", "y"]), "acquired")
    shown = [json.loads(world.call(1, f"/locks/{name}")[1])["holders"][0]["fence"] for name in "xy"]
    assert held["fences"] == shown, f"the fences are {shown}"
    end = time.monotonic() + 2 * TTL_MS / 1000
    while time.monotonic() < end:
        assert expect(b.acquire("y"), "refused")["kind"] in ("held", "unavailable")
        expect(a.do("check"), "valid")
    status, _ = world.call(1, "/locks/y?force=now&reason=conformance", "DELETE")
    assert status == 204, f"force answered {status}"
    a.lost()
    expect(a.do("check"), "not-valid")
    expect(a.do("release"), "not-valid", "refused")
    assert world.call(0, "/locks/x")[0] == 404, "what was left of the set is not released"


def leaves_a_kept_lease(world, a, b):
    """A lease that the service keeps outlives its client and its TTL, and can be released before."""
    expect(a.acquire("x", ttl_ms=5000, keep_ms=60000), "acquired")
    expect(a.do("release"), "released")
    expect(a.acquire("x", ttl_ms=5000, keep_ms=9000), "acquired")
    expect(a.do("check"), "valid")
    expect(a.do("leave"), "left")
    left = time.monotonic()
    a.process.kill()
    until("more than the TTL", lambda: time.monotonic() - left > 6)
    assert expect(b.acquire("x"), "refused")["kind"] == "held"
    expect(b.acquire("x", wait_ms=15000), "acquired")
    expect(b.do("release"), "released")


def waits_by_a_ticket(world, a, b):
    """A ticket waits without a request, at another instance where its own is killed, and the service keeps its lease."""
    expect(a.acquire("x"), "acquired")
    asked = expect(b.do("ask", name="x", keep_ms=60000, wait_ms=600000), "asked")
    assert asked["state"] == "waiting" and asked["ticket"].startswith("tk_"), asked
    expect(b.do("await", wait_ms=300), "waiting")
    b.begin("await", wait_ms=600000)
    # Whichever serves it, and is being asked.
    serving = until("a waiter", lambda: [i for i in (0, 1) if json.loads(world.call(i, "/locks/x")[1] or b"{}").get("waiting_here")])[0]
    world.instances[serving].kill()
    world.instances[serving].wait()
    expect(a.do("release"), "released")
    granted = expect(b.answers.get(timeout=TAKEN_OVER), "granted")
    holder = json.loads(world.call(1 - serving, "/locks/x")[1])["holders"][0]
    assert [holder["fence"]] == granted["fences"] and holder["kept_until"], f"{granted}, {holder}"
    world.instances[serving] = world.start(world.ports[serving])
    world.ready(serving)
    assert expect(a.acquire("x"), "refused")["kind"] == "held"
    expect(b.do("end"), "ended")
    assert expect(b.do("await", wait_ms=0), "over")["by"] == "released"
    free = expect(b.do("ask", name="x", keep_ms=60000, wait_ms=60000), "asked")
    assert (free["state"], free["ticket"]) == ("accepted", None), free
    expect(b.do("await", wait_ms=0), "granted")
    expect(b.do("end"), "ended")
    expect(a.acquire("y"), "acquired")
    expect(b.do("ask", names=["x", "y"], keep_ms=60000, wait_ms=60000), "asked")
    expect(a.do("release"), "released")
    both = expect(b.do("await", wait_ms=15000), "granted")
    shown = [json.loads(world.call(0, f"/locks/{name}")[1])["holders"][0]["fence"] for name in "xy"]
    assert both["fences"] == shown, f"the fences are {shown}, not {both}"
    expect(b.do("end"), "ended")


SCENARIOS = [
    holds_and_excludes,
    waits_for_a_release,
    notices_a_frozen_service_in_time,
    survives_an_instance,
    passes_over_an_instance_that_hangs,
    leaves_an_instance_that_freezes_under_a_waiter,
    waits_no_longer_than_asked,
    survives_a_restart_of_all_instances,
    survives_a_short_outage_of_the_nodes,
    notices_a_forced_end,
    does_not_trust_time_that_stood_still,
    notices_a_suspend,
    leaves_nothing_behind,
    shares,
    takes_all_or_none,
    leaves_a_kept_lease,
    waits_by_a_ticket,
]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--service", default="redlockd", help="the service's program")
    parser.add_argument("--only", help="run this scenario alone")
    parser.add_argument("driver", nargs=argparse.REMAINDER, help="the command of the client's driver")
    args = parser.parse_args()
    if not args.driver:
        parser.error("name the command of a driver")
    scenarios = [s for s in SCENARIOS if args.only in (None, s.__name__)]
    failed = 0
    world = World(args.service)
    try:
        for scenario in scenarios:
            drivers = [Driver(args.driver, world), Driver(args.driver, world)]
            try:
                scenario(world, *drivers)
                print(f"ok      {scenario.__name__}", flush=True)
            except (AssertionError, queue.Empty, OSError) as error:
                failed += 1
                print(f"FAILED  {scenario.__name__}: {error or 'no answer of the driver'}", flush=True)
                world.mend()
            finally:
                for driver in drivers:
                    driver.close()
            until("a free lock", lambda: world.call(1, "/locks/x")[0] == 404)
    finally:
        world.close()
    print(f"{len(scenarios) - failed} passed, {failed} failed")
    return 1 if failed else 0


sys.exit(main())
