-- Acquires of which most are: this node votes, none of the resources is held, and no request needs more than its own time of
-- sending as its fence. Decides them without what only others need; for all others, nothing was written, and acquire.lua decides.
-- One acquire, or a batch of acquires of different resources; each is decided as if it were the only one.
-- KEYS: for each: lock, token tombstone (redlockd:gone:TOKEN:RESOURCE), attempt tombstone (that and #ATTEMPT). The index is left to
--       the instance (index.lua).
-- ARGV: 1 run|cluster|view, 2 guard_us, 3 fence_ttl_ms, 4 ask (together as in marker.lua), then for each: sent_us,
--       px_ms (ttl + lock_delay), value as it is stored if the fence is sent_us
-- value: token hash (64 hex) | renewals (6 digits) | ttl_ms | fence | attempt,attempt, | labels
-- Reply: one acquire that is granted: its fence. Otherwise for each, in order: its fence (granted), or a list, see acquire.lua.
-- By callgrind: reading a number of 16 digits takes 1,000 instructions, a new string 1,000 to 2,500, a closure 3,000, letting a
-- table grow 1,000, a list as the reply 4,500, a key or an argument 1,500 to 3,500. So numbers of 16 digits are compared as text.
local call, n = redis.call, #KEYS
local t, meta = call('TIME'), call('HMGET', 'redlockd:meta', 'pass', 'ask', 'seen', 'hw', 'gen')
-- The first two: whether any resource has a block, or an intent. From then on as KEYS.
local found = call('MGET', 'redlockd:blocks', 'redlockd:intents', unpack(KEYS))
local NOW, GUARD = t[1] * 1000000 + t[2], ARGV[2] + 0 -- microseconds, exact in a double until the year 2255
local seen, given, gen, top = meta[3], meta[4], meta[5], nil
if meta[1] == ARGV[1] and meta[2] == ARGV[4] and given and gen and #seen == 16 and #given == 16 and not (found[1] or found[2]) then
  local age = NOW / 1000 / ARGV[3] - gen
  top = age >= 0 and age < 1 and given -- otherwise the next generation of fences begins
  for k = 3, top and n or 0, 3 do
    local sent = ARGV[k + 2]
    local late = NOW - sent
    -- Above the highest fence that was given here, this fence needs no other floor. And since NOW + guard >= sent >= seen, this
    -- clock has not gone back. Times have 16 digits from the year 2001 to 2286.
    if #sent == 16 and sent > given and sent >= seen and late <= GUARD and late >= -GUARD and not (found[k] or found[k + 1] or found[k + 2]) then
      if sent > top then top = sent end
    else
      top = nil
      break
    end
  end
end
if top then
  call('HSET', 'redlockd:meta', 'hw', top) -- before any lease has it
  local last, out = 0, n > 3 and {}
  for k = 3, n, 3 do
    if call('SET', KEYS[k - 2], ARGV[k + 4], 'NX', 'PX', ARGV[k + 3]) then -- NX: the key may be of another type
      KEYS[last + 1], KEYS[last + 2] = string.sub(KEYS[k - 1], 80), ARGV[k + 2] -- those before k are not needed any more
      last = last + 2
      if out then out[k / 3] = ARGV[k + 2] end
    else
      out = out or {}
      out[k / 3] = { 'B', call('PTTL', KEYS[k - 2]), '' }
    end
  end
  if last > 0 then call('HSET', gen % 2 == 0 and 'redlockd:fences:0' or 'redlockd:fences:1', unpack(KEYS, 1, last)) end
  return out or ARGV[5]
end
local META, PASS, SENT = 'redlockd:meta', ARGV[1] .. '|' .. ARGV[4], tonumber(ARGV[5])
local rest = call('HMGET', META, 'base', 'qms')
local m = { meta[1], seen, given, rest[1], gen, meta[2], rest[2] } -- as marker.lua has it
