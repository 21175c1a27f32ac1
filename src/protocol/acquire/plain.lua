-- Acquires of which most are: this node votes, none of the resources is held, and no request needs more than its own time of
-- sending as its fence. Decides them without what only others need; for all others, nothing was written, and acquire.lua decides.
-- One acquire, or a batch of acquires of different resources; each is decided as if it were the only one.
-- KEYS: the lock of each. The index is left to the instance (index.lua).
-- ARGV: 1 run|cluster|view, 2 guard_us, 3 fence_ttl_ms, 4 ask (together as in marker.lua), 5 '' | again (1: some are not the first
--       request with their token) and the lengths of what the key template has before and after the name, then for each: sent_us,
--       px_ms (ttl + lock_delay), value as it is stored if the fence is sent_us
-- value: token hash (64 hex) | renewals (6 digits) | ttl_ms | fence | attempt,attempt, | labels
-- Reply: one acquire that is granted: its fence. Otherwise for each, in order: its fence (granted), or a list, see acquire.lua.
-- The tombstones of tokens are not read for first requests with their tokens whose time is above all fences given here, after
-- meta's late: then this node has ended none of these tokens (docs/safety.md, "Tombstones that are not read"). Those that are keys
-- are read while there is a redlockd:tombstones.
-- By callgrind: reading a number of 16 digits takes 1,000 instructions, a new string 5 for each byte and 500, a closure 3,000, letting
-- a table grow 1,000, a list as the reply 4,500, a key or an argument 1,500 to 3,500. So numbers of 16 digits are compared as text.
local KEYS, ARGV, call, unpack, found, names = KEYS, ARGV, redis.call, unpack, nil, KEYS
local n, is_again, late_for = #KEYS, nil, nil
local t, meta = call('TIME'), call('HMGET', 'redlockd:meta', 'pass', 'ask', 'seen', 'hw', 'gen', 'late')
-- How many there are of these: whether any resource has a block or an intent, whether any tombstone is a key, and KEYS.
local exist = call('EXISTS', 'redlockd:blocks', 'redlockd:intents', 'redlockd:tombstones', unpack(KEYS))
if ARGV[5] ~= '' then
  local again, head, tail = string.match(ARGV[5], '(%d) (%d+) (%d+)')
  is_again, names = again == '1', {}
  for i = 1, n do names[i] = string.sub(KEYS[i], head + 1, -tail - 1) end
end
if exist > 0 then found = call('MGET', 'redlockd:blocks', 'redlockd:intents', 'redlockd:tombstones', unpack(KEYS)) end
local NOW, GUARD = t[1] * 1000000 + t[2], ARGV[2] + 0 -- microseconds, exact in a double until the year 2255
if is_again or meta[6] then late_for = (meta[6] or 0) - NOW end -- us
local has_keys = exist == 1 and found[3]
if has_keys or exist == 0 and (is_again or late_for and late_for >= 0) then -- only a tombstone can keep them out
  local tombstones, keys = {}, {}
  for i = 1, n do
    local value = ARGV[3 * i + 5]
    tombstones[i] = 'redlockd:gone:' .. string.sub(value, 1, 64) .. ':' .. names[i]
    if has_keys then
      local claim = string.find(value, ',|', 90, true)
      keys[2 * i - 1], keys[2 * i] = tombstones[i], tombstones[i] .. '#' .. string.sub(value, claim - 17, claim - 1)
    end
  end
  exist = has_keys and call('EXISTS', unpack(keys)) or 0
  for _, hash in ipairs({ 'redlockd:ended', 'redlockd:ended:old' }) do
    for _, ended in ipairs(call('HMGET', hash, unpack(tombstones))) do exist = ended and 1 or exist end
  end
end
local seen, given, gen, top = meta[3], meta[4], meta[5], nil
if exist == 0 and meta[1] == ARGV[1] and meta[2] == ARGV[4] and given and gen and #seen == 16 and #given == 16 then
  gen = gen + 0
  local age = NOW / 1000 / ARGV[3] - gen
  top = age >= 0 and age < 1 and given -- otherwise the next generation of fences begins
  -- Above the highest fence that was given here, a fence needs no other floor. And since NOW + guard >= sent >= seen, this clock has
  -- not gone back. Times have 16 digits from the year 2001 to 2286.
  local floor, least = given > seen and given or seen, nil
  for at = 6, top and #ARGV or 0, 3 do
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
  if is_again and late_for < 2 * GUARD + 1000000 then -- see acquire.lua
    call('HSET', 'redlockd:meta', 'hw', top, 'late', string.format('%.0f', NOW + 4 * GUARD + 2000000)) -- before any lease has it
  else
    call('HSET', 'redlockd:meta', 'hw', top)
  end
  local at, out = 6, n > 1 and {}
  for i = 1, n do
    local sent = ARGV[at]
    call('PSETEX', KEYS[i], ARGV[at + 1], ARGV[at + 2])
    if out then out[i] = sent end
    ARGV[2 * i - 1], ARGV[2 * i] = names[i], sent -- those before 3 i + 3 are not needed any more
    at = at + 3
  end
  call('HSET', gen % 2 == 0 and 'redlockd:fences:0' or 'redlockd:fences:1', unpack(ARGV, 1, 2 * n))
  return out or ARGV[2]
end
found = found or call('MGET', 'redlockd:blocks', 'redlockd:intents', 'redlockd:tombstones', unpack(KEYS))
local META, PASS, SENT = 'redlockd:meta', ARGV[1] .. '|' .. ARGV[4], tonumber(ARGV[6])
local rest = call('HMGET', META, 'base', 'qms')
local m = { meta[1], seen, given, rest[1], gen, meta[2], rest[2] } -- as marker.lua has it
