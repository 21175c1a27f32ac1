-- Shared beginning of every script that may vote.
-- KEYS: 1 redlockd:meta
-- ARGV: 1 marker fingerprint: run|cluster|quarantine_ms (empty run: read it here, for identity = "script"),
--       2 guard_us, 3 fence_ttl_ms, 4 sent_us
-- meta (hash, no TTL): pass (the marker fingerprint while this node votes, else ''), seen (latest time in us at which this
--   clock was found to be off), hw (highest fence given here), base (>= every fence counter that may have expired), per
--   (period of the last copy of hw into base); and, read only if pass does not match: run, st ('a' active |
--   'q' quarantined), cfg (cluster), qms (longest quarantine in ms), until (us), owed (us: end of a quarantine by another
--   clock, see below), ev (evicted_keys), why, since (us)
-- Each redis.call costs 1 to 2 us here and each closure 0.3 us: a node that votes does not call judge().
local META, PASS, GUARD, SENT = KEYS[1], ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[4])
local t = redis.call('TIME')
local NOW = t[1] * 1000000 + t[2] -- microseconds, exact in a double until the year 2255
if string.byte(PASS) == 124 then PASS = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)') .. PASS end
local m = redis.call('HMGET', META, 'pass', 'seen', 'hw', 'base', 'per')
local hw, Q = tonumber(m[3] or 0), nil
local sound = m[1] == PASS and NOW >= m[2] - GUARD -- the marker is valid and this clock has not gone back
local fit = sound and NOW - SENT <= GUARD and SENT - NOW <= GUARD
-- The full check. Returns nil if this node may vote, else the refusal to reply; with an order, the new quarantine.
local function judge(order)
  local RUN, CFG, QMS = string.match(PASS, '^(%x*)|(.*)|(%d+)$')
  QMS = tonumber(QMS)
  local x = redis.call('HMGET', META, 'run', 'st', 'cfg', 'qms', 'until', 'owed')
  local run, st, cfg, qms, till, owed = x[1], x[2], x[3], tonumber(x[4] or 0), tonumber(x[5] or 0), tonumber(x[6] or 0)
  Q = math.max(QMS, qms) -- instances may differ in max_ttl: the longest quarantine counts
  local seen = tonumber(m[2] or 0)
  local lost = order or not run and 'blank' or run ~= RUN and 'restart' or NOW < seen - GUARD and 'clock' or nil
  if not order and math.abs(NOW - SENT) > GUARD then -- a late request, or one of the two clocks is off
    if not lost and NOW > seen then redis.call('HSET', META, 'seen', NOW) end
    return { 'K', NOW }
  end
  if lost then
    cfg = cfg or CFG -- an order may come from an instance of another cluster: a node keeps its own
    -- Another clock may be right and return: that of the quarantine that this one replaces, or the sender's.
    if st == 'q' then owed = math.max(owed, till) end
    if math.abs(NOW - SENT) > GUARD then owed = math.max(owed, SENT + Q * 1000) end
    st, till = 'q', NOW + Q * 1000
    redis.call('HDEL', META, 'ev') -- may be of another process: the next probe stores it again
    redis.call('HSET', META, 'pass', '', 'seen', NOW, 'run', RUN, 'st', st, 'cfg', cfg, 'qms', Q, 'until', till,
      'owed', owed, 'why', lost, 'since', NOW)
  elseif Q > qms then
    till = till + (Q - qms) * 1000
    redis.call('HSET', META, 'qms', Q, 'until', till, 'pass', st == 'a' and table.concat({ run, cfg, Q }, '|') or '')
  end
  if order then return { 'Q', Q } end
  if cfg ~= CFG then return { 'C', cfg } end
  if st ~= 'a' then
    if NOW < till then return { 'Q', math.ceil((till - NOW) / 1000) } end
    if NOW < owed and NOW >= owed - Q * 1000 then return { 'Q', math.ceil((owed - NOW) / 1000) } end
    return { 'S', hw } -- quarantine served: it needs the other nodes' highest fence
  end
  return nil
end
