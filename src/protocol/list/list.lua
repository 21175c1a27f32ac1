-- One page of the index of held leases. KEYS: 1 index
-- ARGV: 1 cursor (0 at first), 2 count, 3 key head, 4 key tail
-- Read in the order of the leases' ends, which only move forward while a lease is held, so that no held lease is missed.
-- If a whole page of leases ends in the same millisecond, the listing restarts with ZSCAN, at twice the cost (it formats
-- each score as text). The cursor is an end in ms; from SCAN on it is SCAN plus a ZSCAN cursor.
-- The lock keys are built from the members: undeclared keys, which independent masters allow.
-- Replies: {next cursor ('0' = end), resource, pttl, value, ...}; members each as a lease of its own. Where more than CHUNK / 4 leases are
-- on the page, the locks with members that follow are named only, with the value of the lock: so a page is bounded.
local INDEX, head, tail, SCAN, CHUNK = KEYS[1], ARGV[3], ARGV[4], 1e14, 1000
local cursor, found, count, out = tonumber(ARGV[1]), nil, 0, { '0' }
if cursor < SCAN then
  found = redis.call('ZRANGEBYSCORE', INDEX, ARGV[1], '(100000000000000', 'LIMIT', 0, ARGV[2])
  count = #found
  if count == tonumber(ARGV[2]) then -- leases that end at the same time as the last one are left to the next page
    local last = redis.call('ZSCORE', INDEX, found[count])
    count = redis.call('ZCOUNT', INDEX, ARGV[1], '(' .. last)
    if count > 0 then out[1] = string.format('%.0f', math.ceil(last)) else cursor = SCAN end
  end
end
if cursor >= SCAN then
  local scan = redis.call('ZSCAN', INDEX, string.format('%.0f', cursor - SCAN), 'COUNT', ARGV[2])
  if scan[1] ~= '0' then out[1] = string.format('%.0f', SCAN + scan[1]) end
  found, count = {}, #scan[2] / 2
  for i = 1, count do found[i] = scan[2][2 * i - 1] end
end
local keys, n, NOW_MS = found, 1, nil
-- The members of a resource (members.lua), each with its remaining time and its record.
local function living(resource)
  local t = not NOW_MS and redis.call('TIME')
  if t then NOW_MS = t[1] * 1000 + math.floor(t[2] / 1000) end
  local all, members = redis.call('HGETALL', 'redlockd:m:' .. resource), {}
  for i = 1, #all, 2 do
    local ends, mode, rest = string.match(all[i + 1], '^(%d+)|([^|]*)|(.*)$')
    local left = (tonumber(ends) or 0) - NOW_MS
    if left >= 0 then members[#members + 1] = { left, 'M' .. mode .. '|' .. all[i] .. '|' .. rest } end
  end
  return members
end
if head ~= '' or tail ~= '' or NAMES then
  keys = {}
  for i = 1, count do keys[i] = lock_of(found[i], head .. found[i] .. tail) end
end
for first = 1, count, CHUNK do -- more than one chunk only where ZSCAN returns more than COUNT
  local values = redis.call('MGET', unpack(keys, first, math.min(count, first + CHUNK - 1)))
  for i = 1, #values do
    local v, at = values[i], first + i - 1
    if v and string.byte(v, 65) == 124 then
      out[n + 1], out[n + 2], out[n + 3] = found[at], redis.call('PTTL', keys[at]), v
      n = n + 3
    elseif v and string.sub(v, 1, 2) == 'S|' then
      if n > 3 * CHUNK / 4 then
        out[n + 1], out[n + 2], out[n + 3] = found[at], redis.call('PTTL', keys[at]), v
        n = n + 3
      else
        for _, of in ipairs(living(found[at])) do
          out[n + 1], out[n + 2], out[n + 3] = found[at], of[1], of[2]
          n = n + 3
        end
      end
    end
  end
end
return out
