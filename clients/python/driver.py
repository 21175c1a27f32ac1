#!/usr/bin/env python3
"""Drives the Python client for clients/conformance.py: commands on standard input, events on standard output."""

import json
import os
import sys
import threading

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import redlockd  # noqa: E402

_output = threading.Lock()


def report(event, **members):
    with _output:
        print(json.dumps({"event": event, **members}), flush=True)


def refusal(error):
    kinds = {redlockd.Held: "held", redlockd.Unavailable: "unavailable", redlockd.Lost: "lost"}
    return kinds.get(type(error), "refused")


def main():
    client, lock, ticket = redlockd.Client(), None, None
    for line in sys.stdin:
        command = json.loads(line)
        try:
            if command["do"] == "acquire":
                options = {"ttl": command["ttl_ms"] / 1000, "wait": command["wait_ms"] / 1000}
                options.update((name, command[name]) for name in ("mode", "limit") if name in command)
                if "keep_ms" in command:
                    options["keep"] = command["keep_ms"] / 1000
                lock = client.lock(command.get("names") or command["name"], on_lost=lambda why: report("lost", why=why), **options)
                lock.acquire()
                fences = list(lock.fences.values())
                report("acquired", fence=fences[0], fences=fences, slot=lock.slot, valid_for_ms=round(lock.valid_for() * 1000))
            elif command["do"] == "check":
                lock.check()
                report("valid", valid_for_ms=round(lock.valid_for() * 1000))
            elif command["do"] == "release":
                lock.release()
                report("released")
            elif command["do"] == "leave":
                lock.leave()
                report("left")
            elif command["do"] == "ask":
                keep, wait = command["keep_ms"] / 1000, command["wait_ms"] / 1000
                ticket = client.ticket(command.get("names") or command["name"], keep=keep, wait=wait)
                report("asked", state=ticket.state, ticket=ticket.id)
            elif command["do"] == "await":
                granted = ticket.wait(command["wait_ms"] / 1000)
                report("granted" if granted else "waiting", fences=list(ticket.fences.values()))
            elif command["do"] == "end":
                ticket.end()
                report("ended")
        except redlockd.LockLost as error:
            report("not-valid", why=str(error))
        except redlockd.TicketOver as error:
            report("over", by=error.ended_by)
        except redlockd.Error as error:
            report("refused", kind=refusal(error), why=str(error))


main()
