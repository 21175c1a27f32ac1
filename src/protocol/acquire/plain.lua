-- Acquires of which most are: this node votes, none of the resources is held, and no request needs more than its own time of
-- sending as its fence. Decides them without what only others need; for all others, nothing was written, and acquire.lua decides.
-- One acquire, or a batch of acquires of different resources; each is decided as if it were the only one.
-- KEYS: for each: lock, token tombstone (redlockd:gone:TOKEN:RESOURCE). That of an attempt (the same and #ATTEMPT) is read only if
--       this node has any (redlockd:cancels). The index is left to the instance (index.lua).
-- ARGV: 1 run|cluster|view, 2 guard_us, 3 fence_ttl_ms, 4 ask (together as in marker.lua), then for each: sent_us,
--       px_ms (ttl + lock_delay), value as it is stored if the fence is sent_us
-- value: token hash (64 hex) | renewals (6 digits) | ttl_ms | fence | attempt,attempt, | labels
-- Reply: one acquire that is granted: its fence. Otherwise for each, in order: its fence (granted), or a list, see acquire.lua.
-- By callgrind: reading a number of 16 digits takes 1,000 instructions, a new string 5 for each byte and 500, a closure 3,000, letting
-- a table grow 1,000, a list as the reply 4,500, a key or an argument 1,500 to 3,500. So numbers of 16 digits are compared as text.
local KEYS, ARGV, call, unpack, found, attempts = KEYS, ARGV, redis.call, unpack, nil, nil
local n = #KEYS
local t, meta = call('TIME'), call('HMGET', 'redlockd:meta', 'pass', 'ask', 'seen', 'hw', 'gen')
-- How many there are of these: whether any resource has a block or an intent, whether an attempt was cancelled here, and KEYS.
local exist = call('EXISTS', 'redlockd:blocks', 'redlockd:intents', 'redlockd:cancels', unpack(KEYS))
if exist > 0 then
  found = call('MGET', 'redlockd:blocks', 'redlockd:intents', 'redlockd:cancels', unpack(KEYS))
  if found[3] then
    attempts = {}
    for i = 1, n / 2 do attempts[i] = KEYS[2 * i] .. '#' .. string.match(ARGV[3 * i + 4], '(%w+),', 66) end
    if exist == 1 then exist = call('EXISTS', unpack(attempts)) end
  end
end
local NOW, GUARD = t[1] * 1000000 + t[2], ARGV[2] + 0 -- microseconds, exact in a double until the year 2255
local seen, given, gen, top = meta[3], meta[4], meta[5], nil
if exist == 0 and meta[1] == ARGV[1] and meta[2] == ARGV[4] and given and gen and #seen == 16 and #given == 16 then
  gen = gen + 0
  local age = NOW / 1000 / ARGV[3] - gen
  top = age >= 0 and age < 1 and given -- otherwise the next generation of fences begins
  -- Above the highest fence that was given here, a fence needs no other floor. And since NOW + guard >= sent >= seen, this clock has
  -- not gone back. Times have 16 digits from the year 2001 to 2286.
  local floor, least = given > seen and given or seen, nil
  for at = 5, top and #ARGV or 0, 3 do
    local sent = ARGV[at]
    if #sent ~= 16 or sent <= floor then
      top = nil
      break
    end
    if sent > top then top = sent end
    if not least or sent < least then least = sent end
  end
  local late = top and NOW - least
  if not top or late > GUARD or (least == top and -late or top - NOW) > GUARD then top = nil end
end
if top then
  call('HSET', 'redlockd:meta', 'hw', top) -- before any lease has it
  local at, out = 5, n > 2 and {}
  for k = 1, n, 2 do
    local lock, tombstone, sent = KEYS[k], KEYS[k + 1], ARGV[at]
    call('PSETEX', lock, ARGV[at + 1], ARGV[at + 2])
    if #lock ~= #tombstone - 79 then KEYS[k] = string.sub(tombstone, 80) end
    KEYS[k + 1] = sent
    if out then out[(k + 1) / 2] = sent end
    at = at + 3
  end
  call('HSET', gen % 2 == 0 and 'redlockd:fences:0' or 'redlockd:fences:1', unpack(KEYS))
  return out or ARGV[5]
end
found = found or call('MGET', 'redlockd:blocks', 'redlockd:intents', 'redlockd:cancels', unpack(KEYS))
local META, PASS, SENT = 'redlockd:meta', ARGV[1] .. '|' .. ARGV[4], tonumber(ARGV[5])
local rest = call('HMGET', META, 'base', 'qms')
local m = { meta[1], seen, given, rest[1], gen, meta[2], rest[2] } -- as marker.lua has it
