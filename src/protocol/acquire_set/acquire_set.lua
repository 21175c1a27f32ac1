-- Acquire of several resources with one token: all of them, or none. Each lease is as acquire.lua leaves it.
-- KEYS: 1 meta, 2 index, then for each resource: lock, token tombstone, attempt tombstone, fence counter
-- ARGV: as in marker.lua, 5 token hash, 6 ttl_ms, 7 px_ms (ttl + lock_delay), 8 attempt, 9 labels, then each resource
-- Reply: Y and for each its fence and 1 if the token had it, else 0; or N and for each that keeps the set out its number and
--        why, as acquire.lua replies: B pttl value | D reason | X | W left; or K C P Q S V
local no = not fit and judge() or nil
if no then return no end
local TOKEN, TTL, PX, ATTEMPT, LABELS = ARGV[5], ARGV[6], ARGV[7], ARGV[8], ARGV[9]
local NOW_MS, FENCE_TTL = math.floor(NOW / 1000), ARGV[3]
local found = redis.call('MGET', 'redlockd:blocks', unpack(KEYS, 3)) -- the first: whether any resource has a block
local count, refused, had = (#found - 1) / 4, { 'N' }, {}
local function refuse(i, why) refused[#refused + 1], refused[#refused + 2] = i, why end
for i = 1, count do
  local k = 4 * i - 2
  local v, LOCK = found[k], KEYS[k + 1]
  local block = found[1] and redis.call('PTTL', 'redlockd:block:' .. ARGV[9 + i]) or -2
  if found[k + 1] then
    refuse(i, { 'D', found[k + 1] }) -- this token was released
  elseif found[k + 2] then
    refuse(i, { 'D', 'cancelled' }) -- this attempt was cancelled before it arrived
  elseif block ~= -2 then
    refuse(i, { 'W', block })
  elseif not v then -- the key may be of another type
    if redis.call('EXISTS', LOCK) == 1 then refuse(i, { 'B', redis.call('PTTL', LOCK), '' }) end
  else
    local left = redis.call('PTTL', LOCK)
    if string.sub(v, 1, 65) == TOKEN .. '|' then
      local head, fence, claims, labels = string.match(v, '^(%d+|%d+|)(%d+)|([^|]*)(|.*)$', 66)
      if not head then
        refuse(i, { 'B', left, '' }) -- a foreign client has changed the value
      elseif string.find(claims, ATTEMPT .. ',', 1, true) then
        had[i] = { v, fence, left }
      elseif #claims >= 288 then
        refuse(i, { 'X' }) -- MAX_CLAIMS claims of 18 bytes each
      else
        had[i] = { TOKEN .. '|' .. head .. fence .. '|' .. claims .. ATTEMPT .. ',' .. labels, fence, left }
      end
    elseif string.byte(v, 65) == 124 and string.find(v, '^%x+|%d+|%d+|%d+|') then -- held by another lease
      if left < 0 or left > Q then -- no lease lasts longer than a quarantine: this clock went backwards
        left = Q
        redis.call('PEXPIRE', LOCK, left)
      end
      refuse(i, { 'B', left, v })
    else
      refuse(i, { 'B', left, '' }) -- held by a foreign client
    end
  end
end
if #refused > 1 then return refused end
-- Nothing keeps the set out. First the fences, then the leases.
local base, per, top, out, digits = tonumber(m[4] or 0), math.floor(NOW_MS / FENCE_TTL), hw, { 'Y' }, {}
for i = 1, count do
  local fence = had[i] and tonumber(had[i][2])
  if not fence then
    -- Fence counters may expire: base, a periodic copy of hw, is at least as high as every expired one.
    if per ~= tonumber(m[5]) then
      base, m[5] = math.max(base, top), per
      redis.call('HSET', META, 'base', base, 'per', per)
    end
    fence = math.max(SENT, base + 1, tonumber(found[4 * i + 1] or 0) + 1)
    if fence > top then top = fence end
    digits[i] = string.format('%.0f', fence)
  end
  out[2 * i], out[2 * i + 1] = fence, had[i] and 1 or 0
end
if top > hw then redis.call('HSET', META, 'hw', string.format('%.0f', top)) end
local index = {}
for i = 1, count do
  local k = 4 * i - 2
  if had[i] then
    redis.call('SET', KEYS[k + 1], had[i][1], 'PX', math.max(PX, had[i][3]))
  else
    local value = TOKEN .. '|000000|' .. TTL .. '|' .. digits[i] .. '|' .. ATTEMPT .. ',|' .. LABELS
    redis.call('SET', KEYS[k + 1], value, 'PX', PX)
    redis.call('SET', KEYS[k + 4], digits[i], 'PX', FENCE_TTL)
    index[#index + 1], index[#index + 2] = NOW_MS + PX, ARGV[9 + i]
  end
end
if #index > 0 then redis.call('ZADD', KEYS[2], unpack(index)) end
return out
