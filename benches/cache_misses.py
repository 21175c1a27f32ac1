#!/usr/bin/env python3
"""Cache misses of a cycle (an acquire and a release over five nodes) in the service and in a bare endpoint that answers the same JSON:
they cost time that a count of instructions does not show. Simulated by callgrind, with 32 KiB each for
code and data on the first level, and 512 KiB on the second: `cache_misses.py REDLOCKD REDLOCKD-SPEED`."""
import subprocess
import sys
import tempfile

from service_parts import CYCLES, count_once_warm, counted

CACHES = ["--cache-sim=yes", "--I1=32768,8,64", "--D1=32768,8,64", "--LL=524288,8,64"]
# Names of callgrind: misses of code, and of data that is read or written.
COLUMNS = {
    "instructions": ["Ir"],
    "code, first level": ["I1mr"],
    "data, first level": ["D1mr", "D1mw"],
    "second level": ["ILmr", "DLmr", "DLmw"],
}


def counted_bare(speed, connections, file):
    """Writes callgrind's output of `CYCLES` cycles of the bare endpoint to the file."""
    under = ["valgrind", "--quiet", "--tool=callgrind", f"--callgrind-out-file={file}", *CACHES]
    endpoint = subprocess.Popen([*under, speed, "bare"], stdout=subprocess.PIPE, text=True)
    try:
        port = int(endpoint.stdout.readline().rpartition(":")[2])
        count_once_warm(endpoint, port, connections)
    finally:
        endpoint.kill()
        endpoint.wait()


def per_cycle(file):
    """What the file counts, by callgrind's names."""
    with open(file, errors="replace") as lines:
        found = dict(line.rstrip().split(": ", 1) for line in lines if line.startswith(("events: ", "totals: ", "summary: ")))
    counts = found.get("totals") or found["summary"]
    return {name: int(count) / CYCLES for name, count in zip(found["events"].split(), counts.split())}


def main():
    redlockd, speed = sys.argv[1:]
    print("\n| misses per cycle | connections | " + " | ".join(COLUMNS) + " |\n|---|---:|" + "---:|" * len(COLUMNS))
    for connections in (64, 1):
        with tempfile.TemporaryDirectory() as directory:
            counted(redlockd, connections, f"{directory}/redlockd", CACHES)
            counted_bare(speed, connections, f"{directory}/bare")
            for what, file in (("redlockd", "redlockd"), ("a bare endpoint", "bare.1")):
                found = per_cycle(f"{directory}/{file}")
                counts = (sum(found[name] for name in names) for names in COLUMNS.values())
                print(f"| {what} | {connections} | " + " | ".join(f"{count:,.0f}" for count in counts) + " |", flush=True)


if __name__ == "__main__":
    main()
