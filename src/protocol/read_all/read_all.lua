-- One page of what a node that votes knows: locks, blocks, tombstones. By SCAN, which returns at least once what is there
-- throughout, and not by the index, which others may change. Then, from cursor ENDED on, the tombstones of releases (ended.lua) by
-- HSCAN: first the hash whose tombstones a probe may move meanwhile to the one that is read after it. KEYS: 1 meta
-- ARGV: as in marker.lua, 5 cursor (0 at first), 6 count, 7 key head, 8 key tail, 9 the longest foreign value in bytes,
--       10 how many members locks may have on a page of more than one key
-- Replies: R next cursor ('0' = end), hw, now_us, then for each: kind, name, pttl, value | K C Q S
-- kinds: L lock, or a member (members.lua) | F a foreign lock whose value is not shown: of another type, or too long | T tombstone (the name is the key
--        behind its prefix, the value its reason) | B a block's token (the value is token|claims, its own remaining time)
local no = not fit and check_vote() or nil
-- One that is to be filled for this view has no vote, and knows all that it has ever voted for.
if no and (no[1] ~= 'V' or no[2] ~= string.match(PASS, '|(%x+)|%d+$')) then return no end
if NAMES and NAMES ~= ARGV[7] .. '{resource}' .. ARGV[8] then -- its leases do not have these names, or not yet all of them
  return { 'V', redis.call('HMGET', META, 'roster')[1] or NONE }
end
local count, head, tail, CHUNK, ENDED = tonumber(ARGV[6]), ARGV[7], ARGV[8], 1000, 1e15
local from = tonumber(ARGV[5])
if from >= ENDED then
  local is_new = from < 2 * ENDED
  local base = is_new and ENDED or 2 * ENDED
  local scan = redis.call('HSCAN', is_new and 'redlockd:ended' or 'redlockd:ended:old', string.format('%.0f', from - base), 'COUNT', count)
  local next = scan[1] ~= '0' and base + scan[1] or is_new and 2 * ENDED or 0
  local out, n = { 'R', string.format('%.0f', next), hw, NOW }, 4
  for i = 1, #scan[2], 2 do
    local reason, s, us = string.match(scan[2][i + 1], '^(%l+)|(%d+)|(%d+)$')
    local left = reason and 60000 - math.floor((NOW - s * 1000000 - us) / 1000) or -1 -- TOKEN_TOMBSTONE
    if left >= 0 then
      out[n + 1], out[n + 2], out[n + 3], out[n + 4] = 'T', string.sub(scan[2][i], 15), left, reason
      n = n + 4
    end
  end
  return out
end
-- What a lease can have left: no longer than a quarantine, whatever this clock was when it was written.
local function at_most_Q(left)
  return left < 0 and Q or math.min(left, Q)
end
-- Fewer keys where they have many members: an instance takes no reply without bounds. The same cursor shows the same keys again.
local scan
repeat
  local members = 0
  scan = redis.call('SCAN', ARGV[5], 'COUNT', count)
  for _, key in ipairs(scan[2]) do
    local length = string.sub(key, 1, 11) == 'redlockd:m:' and redis.pcall('HLEN', key)
    if type(length) == 'number' then members = members + length end -- else a user without the right to it
  end
  local is_bounded = members <= tonumber(ARGV[10]) or count == 1
  count = math.max(1, math.floor(count / 8))
until is_bounded
local is_last = scan[1] == '0' and redis.call('EXISTS', 'redlockd:ended', 'redlockd:ended:old') > 0
local out, kinds, names, keys, n = { 'R', is_last and string.format('%.0f', ENDED) or scan[1], hw, NOW }, {}, {}, {}, 4
for _, key in ipairs(scan[2]) do
  local kind, name
  if string.sub(key, 1, 9) ~= 'redlockd:' then
    if #key > #head + #tail and string.sub(key, 1, #head) == head and string.sub(key, #key - #tail + 1) == tail then
      kind, name = 'L', string.sub(key, #head + 1, #key - #tail)
    end
  elseif string.sub(key, 10, 14) == 'gone:' then
    kind, name = 'T', string.sub(key, 15)
  elseif string.sub(key, 10, 11) == 'm:' then
    local resource, NOW_MS = string.sub(key, 12), math.floor(NOW / 1000)
    local v = redis.call('MGET', head .. resource .. tail)[1] or ''
    local all = string.sub(v, 1, 2) == 'S|' and redis.call('HGETALL', key) or {}
    for i = 1, #all, 2 do
      local ends, mode, rest = string.match(all[i + 1], '^(%d+)|([^|]*)|(.*)$')
      local left = (tonumber(ends) or 0) - NOW_MS
      if left >= 0 then
        out[n + 1], out[n + 2], out[n + 3], out[n + 4] = 'L', resource, at_most_Q(left), 'M' .. mode .. '|' .. all[i] .. '|' .. rest
        n = n + 4
      end
    end
  elseif string.sub(key, 10, 15) == 'block:' then
    local tokens = redis.call('HGETALL', key)
    for i = 1, #tokens, 2 do
      local ends, claims = string.match(tokens[i + 1], '^(%d+)|(.*)$')
      local left = ends - math.floor(NOW / 1000)
      if left >= 0 then
        if tokens[i] ~= '*' then left = at_most_Q(left) end -- a foreign lock may last longer
        out[n + 1], out[n + 2], out[n + 3], out[n + 4] = 'B', string.sub(key, 16), left, tokens[i] .. '|' .. claims
        n = n + 4
      end
    end
  end
  if kind then keys[#keys + 1], kinds[#kinds + 1], names[#names + 1] = key, kind, name end
end
for first = 1, #keys, CHUNK do -- more than one chunk only where SCAN returns more than COUNT
  local values = redis.call('MGET', unpack(keys, first, math.min(#keys, first + CHUNK - 1)))
  for i = 1, #values do
    local at, value = first + i - 1, values[i]
    local kind, left = kinds[at], redis.call('PTTL', keys[at])
    if kind == 'L' and value and string.sub(value, 1, 2) == 'S|' and redis.call('EXISTS', 'redlockd:m:' .. names[at]) == 1 then
      value = nil -- stands with its members
    elseif kind == 'L' and (not value or #value > tonumber(ARGV[9]) and string.byte(value, 65) ~= 124) then
      kind, value = 'F', ''
    elseif kind == 'L' and left ~= -2 and string.byte(value, 65) == 124 and string.find(value, '^%x+|%d+|%d+|%d+|') then
      left = at_most_Q(left)
    end
    if left ~= -2 and value then
      out[n + 1], out[n + 2], out[n + 3], out[n + 4] = kind, names[at], left, value
      n = n + 4
    end
  end
end
return out
