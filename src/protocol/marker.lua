-- Shared beginning of every script that may vote.
-- KEYS: 1 redlockd:meta
-- ARGV: 1 marker fingerprint: run|cluster|view|ask (empty run: read it here, for identity = "script"; view: in which the vote
--       is to count; ask: the quarantine in ms that the sender's longest lease needs), 2 guard_us, 3 fence_ttl_ms: the length
--       of a generation of fences, 4 sent_us
-- meta (hash, no TTL): pass (run|cluster|view while this node votes, else ''), seen (latest time in us at which this clock was
--   found to be off), hw (highest fence given here), base (>= every fence that was forgotten), gen (generation of the fences, see
--   fences.lua), ask (largest quarantine in ms that was asked for in this period), qms (and in the one before:
--   the length of a quarantine); and, read only if those do not match: last (hw when gen began), run, st ('a' active | 'q' quarantined), cfg (cluster;
--   '' on a node that was blank until somebody gives it a vote), proto (version of the protocol), view (installed; none: 32
--   zeros), promised (no lower view is installed), admitted (view of the last admission), roster (the installed view's record),
--   late (us: until then acquires read more tombstones, see ended.lua),
--   pending (a view that changes the list, and for which this process, which it has installed, was not filled yet: no vote),
--   fill (view|nonce|pages|pages done), filled (view of the last fill), until (us), owed (us: end
--   of a quarantine by another clock, see below), roll (us: end of the period of ask), ev (evicted_keys), why, since (us),
--   durable, was, trip (durable.lua);
--   and what probes leave: turned (us: when redlockd:ended began, see ended.lua), beat (us), fit:INSTANCE (us: its time was right here), sees:INSTANCE (us, then name and run of each process that it sees)
-- Each redis.call costs 1 to 2 us here and each closure 0.3 us: a node that votes does not call check_vote().
local META, PASS, GUARD, SENT = KEYS[1], ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[4])
local t = redis.call('TIME')
local NOW = t[1] * 1000000 + t[2] -- microseconds, exact in a double until the year 2255
local m = redis.call('HMGET', META, 'pass', 'seen', 'hw', 'base', 'gen', 'ask', 'qms')
