-- Acquires that plain.lua does not decide, and the others of their batch. Keys and arguments are described there.
-- Reply: for each, in order: its fence (a number: granted), or a list: G fence 1 (joined) | B pttl value |
--        D reason | X | W left (the resource has a block) | H, Y (members or an intent: as in acquire_shared.lua) | K C P Q S
local NOW_MS = math.floor(NOW / 1000)
local INTENT = 2000 -- ms, INTENT_TTL: an intent that lasts longer was left before this clock went back, and does not count
local now, out, new, top, highest, beside, too_long = math.floor(NOW / 1000 / ARGV[3]), {}, {}, hw, nil, nil, nil
local past, tombstones, attempts = nil, {}, {}
gen = tonumber(gen or -1)
for i = 1, n do
  local value = ARGV[3 * i + 5]
  tombstones[i] = 'redlockd:gone:' .. string.sub(value, 1, 64) .. ':' .. names[i]
  local claim = string.find(value, ',|', 90, true)
  attempts[i] = tombstones[i] .. '#' .. string.sub(value, claim - 17, claim - 1)
end
local why, cancelled = why_ended(tombstones), found[3] and redis.call('MGET', unpack(attempts))
for i = 1, n do
  local lock, resource, at = KEYS[i], names[i], 3 * i + 2
  local token, v, ended = string.sub(ARGV[at + 3], 1, 64), found[i + 3], why[i]
  SENT = tonumber(ARGV[at + 1])
  local no = not (sound and NOW - SENT <= GUARD and SENT - NOW <= GUARD) and check_vote() or nil
  local block = found[1] and redis.call('PTTL', 'redlockd:block:' .. resource) or -2
  local intent = found[2] and not v and redis.call('MGET', 'redlockd:i:' .. resource)[1]
  if no then
    out[i] = no
  elseif ended then
    out[i] = { 'D', ended } -- this token was released
  elseif cancelled and cancelled[i] then
    out[i] = { 'D', 'cancelled' } -- this attempt was cancelled before it arrived
  elseif block ~= -2 then
    out[i] = { 'W', block } -- even to the token that has the key: the block may stand for another lease
    if block > Q then
      too_long = too_long or {}
      too_long[#too_long + 1] = i
    end
  elseif intent and string.sub(intent, 1, 64) ~= token and redis.call('PTTL', 'redlockd:i:' .. resource) <= INTENT then
    out[i] = { 'H', redis.call('PTTL', 'redlockd:i:' .. resource), '', 1, '' } -- another caller is next
  elseif not v then
    local fence, digits = SENT, ARGV[at + 1] -- digits: Lua takes long to format a number, or to read one
    if now ~= gen then -- the next generation of fences, see fences.lua
      local next = now == gen + 1
      local base = math.max(m[4] or 0, next and tonumber(redis.call('HMGET', META, 'last')[1] or hw) or hw)
      redis.call('HSET', META, 'base', string.format('%.0f', base), 'gen', now, 'last', string.format('%.0f', hw))
      m[4] = base
      for g = now, next and now or now + 1 do
        local done = redis.pcall('UNLINK', 'redlockd:fences:' .. g % 2)
        if type(done) == 'table' then redis.call('DEL', 'redlockd:fences:' .. g % 2) end -- a user without the right to it
      end
      redis.call('HSET', 'redlockd:fences:' .. now % 2, '', string.rep('-', 65))
      gen = now
    end
    if SENT <= top then -- otherwise SENT is above all that were given here
      if not past then
        past = { redis.call('HMGET', 'redlockd:fences:0', unpack(names)), redis.call('HMGET', 'redlockd:fences:1', unpack(names)) }
      end
      fence = math.max(SENT, (m[4] or 0) + 1, tonumber(past[1][i] or 0) + 1, tonumber(past[2][i] or 0) + 1)
      digits = string.format('%.0f', fence)
    end
    if fence > top then top, highest = fence, digits end
    out[i], new[#new + 1] = fence, i
    if fence ~= SENT then ARGV[at + 1], ARGV[at + 3] = digits, string.gsub(ARGV[at + 3], '^(%x+|%d+|%d+|)%d+', '%1' .. digits) end
  else
    local left = redis.call('PTTL', lock)
    if string.sub(v, 1, 65) == token .. '|' then -- the same token again: the replay joins the lease, its fence unchanged
      local head, fence, claims, labels = string.match(v, '^(%d+|%d+|)(%d+)|([^|]*)(|.*)$', 66)
      local attempt = string.match(ARGV[at + 3], '(%w+,)', 66) -- the first word that ends with a comma
      local known = head and string.find(claims, attempt, 1, true)
      if not head then
        out[i] = { 'B', left, '' } -- a foreign client has changed the value
      elseif not known and #claims >= 288 then
        out[i] = { 'X' } -- MAX_CLAIMS claims of 18 bytes each
      else
        if not known then claims = claims .. attempt end
        local value = token .. '|' .. head .. fence .. '|' .. claims .. labels
        redis.call('SET', lock, value, 'PX', math.max(ARGV[at + 2], left))
        out[i] = { 'G', tonumber(fence), 1 }
      end
    elseif string.byte(v, 65) == 124 and string.find(v, '^%x+|%d+|%d+|%d+|') then -- held by another lease
      if left < 0 or left > Q then -- no lease lasts longer than a quarantine: this clock went backwards
        left = Q
        redis.call('PEXPIRE', lock, left)
      end
      out[i] = { 'B', left, v }
    else
      out[i] = { 'B', left, '' } -- held by a foreign client
      if string.byte(v) == 83 then -- S: or by members
        beside = beside or {}
        beside[#beside + 1] = i
      end
    end
  end
end
-- The highest fence is stored before any lease has it.
if highest then redis.call('HSET', META, 'hw', highest) end
-- A lease that is not made by the first request with its token does not show that this one was here: until it is too old, it is late.
if is_again and #new > 0 and late_for < 2 * GUARD + 1000000 then expect_late(4 * GUARD + 2000000) end
local fences = {}
for _, i in ipairs(new) do
  local lock, at = KEYS[i], 3 * i + 2
  if redis.call('SET', lock, ARGV[at + 3], 'NX', 'PX', ARGV[at + 2]) then -- NX: the key may be of another type
    fences[#fences + 1], fences[#fences + 2] = names[i], ARGV[at + 1]
  else
    out[i] = { 'B', redis.call('PTTL', lock), '' }
  end
end
if #fences > 0 then redis.call('HSET', gen % 2 == 0 and 'redlockd:fences:0' or 'redlockd:fences:1', unpack(fences)) end
if not (beside or too_long) then return out end
