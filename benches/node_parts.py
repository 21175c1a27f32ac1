#!/usr/bin/env python3
"""Of what an acquire and a release cost a node: each part alone, in instructions of redis-server per request by callgrind. Each
part is a script of its own with the same keys and arguments, of which one that does nothing is subtracted. What is left of the
whole is comparing what was read, and loops."""

import tempfile
import time

from node_instructions import CLUSTER, FEW, FENCE_TTL_MS, MANY, QUARANTINE_MS, RUN, VIEW, Redis, acquire, names, release, run

START, END = "local KEYS, ARGV, call, unpack = KEYS, ARGV, redis.call, unpack ", " return ARGV[1]"
NOTHING = "return ARGV[1]"
READ = "call('EXISTS', 'redlockd:blocks', 'redlockd:intents', 'redlockd:tombstones', unpack(KEYS))"
# What a release finds.
LOCKS = START + "for k = 1, #KEYS, 2 do call('SET', KEYS[k], string.sub(KEYS[k + 1], 15, 78) .. '|' .. string.rep('x', 60), 'PX', 30000) end" + END
EVERY_LOCK = "local locks = {} for i = 1, #KEYS / 2 do locks[i] = KEYS[2 * i - 1] end "
PARTS = {
    "acquire": [
        ("the clock, as a number", "local t = call('TIME') local now = t[1] * 1000000 + t[2]"),
        ("six fields of the marker", "call('HMGET', 'redlockd:meta', 'pass', 'ask', 'seen', 'hw', 'gen', 'late')"),
        ("whether three flags and locks exist", READ),
        ("times are compared", "local top, least for at = 6, #ARGV, 3 do local sent = ARGV[at] if #sent ~= 16 or sent <= '0' then return end if not top or sent > top then top = sent end if not least or sent < least then least = sent end end local late = ARGV[2] - least"),
        ("the highest fence", "call('HSET', 'redlockd:meta', 'hw', ARGV[6])"),
        ("the locks", "for i = 1, #KEYS do call('PSETEX', KEYS[i], ARGV[3 * i + 4], ARGV[3 * i + 5]) end"),
        ("the resources' last fences", "local n = #KEYS for i = 1, n do ARGV[2 * i - 1], ARGV[2 * i] = KEYS[i], ARGV[3 * i + 3] end call('HSET', 'redlockd:fences:0', unpack(ARGV, 1, 2 * n))"),
    ],
    "release": [
        ("three flags and locks", EVERY_LOCK + "call('MGET', 'redlockd:blocks', 'redlockd:notices', 'redlockd:revoked', unpack(locks))"),
        ("the tokens are compared", "for k = 2, #KEYS, 2 do local v = KEYS[k] if string.byte(v, 65) == 124 or string.find(v, string.sub(v, 15, 78), 15, true) ~= 15 then return end end"),
        ("the clock", "local t = call('TIME')"),
        ("the locks are deleted", EVERY_LOCK + "call('DEL', unpack(locks))"),
        ("tombstones", "local v = ARGV[1] .. '|1796030000|123456' for k = 1, #KEYS, 2 do KEYS[k], KEYS[k + 1] = KEYS[k + 1], v end call('HSET', 'redlockd:ended', unpack(KEYS))"),
        ("the index", EVERY_LOCK + "call('ZREM', 'redlockd:leases', unpack(locks))"),
    ],
}


def count(script, before, commands):
    """Instructions of a server that runs a script with each of these, after another one if there is one."""
    with tempfile.TemporaryDirectory() as directory:
        redis = Redis(directory)
        now = time.time_ns() // 1_000
        marker = {"pass": f"{RUN}|{CLUSTER}|{VIEW}", "seen": now, "hw": now, "ask": QUARANTINE_MS, "gen": now // 1_000 // FENCE_TTL_MS}
        redis.ask("HSET", "redlockd:meta", *(word for pair in marker.items() for word in pair))
        redis.ask("HSET", "redlockd:fences:0", "", "-" * 65)
        for sha in [redis.ask("SCRIPT", "LOAD", text) for text in (before, script) if text]:
            redis.ask_all([["EVALSHA", sha, *words] for words in commands], lambda reply: isinstance(reply, (int, str)))
        return redis.instructions()


def each(kind, batch, script, before=""):
    now = time.time_ns() // 1_000
    every = names(MANY)
    batches = [every[first : first + batch] for first in range(0, MANY, batch)]
    all_words = [(acquire("", some, now) if kind == "acquire" else release("", some))[2:] for some in batches]
    few = all_words[: FEW // batch]
    return (count(script, before, all_words) - count(script, before, few)) / (MANY - FEW)


def main():
    print("| request | part | alone | 16 in a batch |\n|---|---|---:|---:|")
    for kind, parts in PARTS.items():
        before = LOCKS if kind == "release" else ""
        lines = [["all"], ["command, keys, arguments, reply"], *([name] for name, _ in parts), ["named"]]
        for batch in (1, 16):
            whole = lambda kind: (run(kind, batch, MANY) - run(kind, batch, FEW)) / (MANY - FEW)
            costs = [each(kind, batch, NOTHING)]
            nothing = each(kind, batch, NOTHING, before) if before else costs[0]
            costs += [each(kind, batch, START + part + END, before) - nothing for _, part in parts]
            all_of_it = whole("release") - whole("acquire") if kind == "release" else whole("acquire")
            figures = [f"{cost:,.0f}" for cost in [all_of_it, *costs]] + [f"{sum(costs) / all_of_it:.0%}"]
            lines = [[*line, figure] for line, figure in zip(lines, figures)]
        for line in lines:
            print(f"| {kind} | {' | '.join(line)} |", flush=True)


if __name__ == "__main__":
    main()
