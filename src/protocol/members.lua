-- Shared leases and permits, which may be held together (docs/modes.md): the members of a resource. Needs NOW_MS.
-- The lock's key is S|s, or S|p and the limit, and lasts as long as the longest of them. redlockd:m:RESOURCE, a hash, has for each
-- token hash: end_ms | mode | renewals | ttl_ms | fence | claims | labels; mode: s, or p and slot/limit.
-- After what decides about exclusive leases, which so pay for none of this.
local SHOWN = 8 -- as many members stand in a refusal
-- The members that live, each {token, end, mode, the rest}; the earliest and the latest end; the tokens of the others.
local function members_of(HASH)
  local all, living, over, first, last = redis.call('HGETALL', HASH), {}, {}, math.huge, 0
  for i = 1, #all, 2 do
    local ends, mode, rest = string.match(all[i + 1], '^(%d+)|([^|]*)|(.*)$')
    ends = tonumber(ends or 0)
    if ends >= NOW_MS then
      living[#living + 1] = { all[i], ends, mode, rest }
      first, last = math.min(first, ends), math.max(last, ends)
    else
      over[#over + 1] = all[i]
    end
  end
  return living, first, last, over
end
-- One of them, if it lives, without reading the others: there may be hundreds.
local function member_of(HASH, token)
  local ends, mode, rest = string.match(redis.call('HGET', HASH, token) or '', '^(%d+)|([^|]*)|(.*)$')
  ends = tonumber(ends or 0)
  return ends >= NOW_MS and { token, ends, mode, rest } or nil
end
-- The latest end of those that live, but for this token's, and the tokens of those that are over.
local function ends_without(HASH, token)
  local all, last, over = redis.call('HGETALL', HASH), 0, {}
  for i = 1, #all, 2 do
    local ends = tonumber(string.match(all[i + 1], '^%d+') or 0)
    if ends < NOW_MS then
      over[#over + 1] = all[i]
    elseif all[i] ~= token then
      last = math.max(last, ends)
    end
  end
  return last, over
end
-- How many there are, those that are over included; 0 where that is not known.
local function count_of(HASH)
  local count = redis.pcall('HLEN', HASH) -- a user may lack the right to it
  return type(count) == 'number' and count or 0
end
local function record_of(of) -- as it is replied
  return 'M' .. of[3] .. '|' .. of[1] .. '|' .. of[4]
end
-- A member as it is stored from now on; both keys last at least px_ms. Whoever is over leaves.
local function store(LOCK, HASH, over, token, ends, mode, rest, px)
  if #over > 0 then redis.call('HDEL', HASH, unpack(over)) end
  redis.call('HSET', HASH, token, string.format('%.0f', ends) .. '|' .. mode .. '|' .. rest)
  for _, key in ipairs({ LOCK, HASH }) do
    if redis.call('PTTL', key) < px then redis.call('PEXPIRE', key, px) end
  end
end
-- The refusal where members, or another caller's intent, keep somebody out until left (nil: the earliest end).
local function held_by(LOCK, HASH, v, left, intent)
  local living, first = {}, nil
  if v then living, first = members_of(HASH) end -- otherwise they are left of a lock whose key was deleted
  local slots, out, longest = {}, { 'H', 0, string.sub(v or '', 3), intent, '' }, redis.call('PTTL', LOCK)
  if #living == 0 and v then return { 'B', longest, '' } end -- a foreign client's value, or all are over
  if Q and (longest > Q or v and longest < 0) then -- no lease lasts longer than a quarantine: this clock went backwards
    longest = Q
    redis.call('PEXPIRE', LOCK, Q)
  end
  left = left or first - NOW_MS
  out[2] = v and (left < 0 or left > longest) and longest or left
  for n, of in ipairs(living) do
    slots[n] = string.match(of[3], '^p(%d+)/')
    if n <= SHOWN then out[#out + 1] = record_of(of) end
  end
  out[5] = table.concat(slots, ',')
  return out
end
