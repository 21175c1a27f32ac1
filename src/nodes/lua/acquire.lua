-- KEYS: 1 meta, 2 lock, 3 counter, 4 token tombstone, 5 attempt tombstone, 6 index
-- ARGV: prelude, 5 token hash, 6 ttl_ms, 7 px_ms (ttl + lock_delay), 8 attempt, 9 labels, 10 resource
-- value: token hash (64 hex) | renewals (6 digits) | ttl_ms | fence | attempt,attempt, | labels
-- Replies: G fence joined | B pttl value | D reason | X | K C Q S
if not fit then
  local no = judge()
  if no then return no end
end
local LOCK, TOKEN, AT = KEYS[2], ARGV[5], ARGV[8]
local r = redis.call('MGET', LOCK, KEYS[4], KEYS[5], KEYS[3])
if r[2] then return { 'D', r[2] } end -- this token was released
if r[3] then return { 'D', 'cancelled' } end -- this attempt was given up before it got here
local v = r[1]
if not v then
  local fence, digits = SENT, ARGV[2]
  -- Counters may expire because base, a snapshot of hw, keeps up with them.
  local base, per = tonumber(m[4] or 0), math.floor(NOW / 1000 / ARGV[4])
  if per ~= tonumber(m[5]) then
    base = math.max(base, hw)
    redis.call('HSET', META, 'base', base, 'per', per)
  end
  local c = tonumber(r[4]) or 0
  if SENT <= hw or SENT <= c then -- else it is above all: base is at most hw
    fence = math.max(SENT, base + 1, c + 1)
    digits = string.format('%.0f', fence)
  end
  local value = TOKEN .. '|000000|' .. ARGV[6] .. '|' .. digits .. '|' .. AT .. ',|' .. ARGV[9]
  if redis.call('SET', LOCK, value, 'NX', 'PX', ARGV[7]) then -- NX: the key may be of another type
    redis.call('SET', KEYS[3], digits, 'PX', ARGV[4])
    if fence > hw then redis.call('HSET', META, 'hw', digits) end
    redis.call('ZADD', KEYS[6], math.floor(NOW / 1000) + ARGV[7], ARGV[10])
    return { 'G', fence, 0 }
  end
elseif string.sub(v, 1, 65) == TOKEN .. '|' then -- the same token again: a replay joins the lease, its fence unchanged
  local head, fence, claims, labels = string.match(v, '^(%d+|%d+|)(%d+)|([^|]*)(|.*)$', 66)
  if not string.find(claims, AT .. ',', 1, true) then
    if #claims >= 288 then return { 'X' } end -- 16 claims of 18 bytes: no client replays that often
    claims = claims .. AT .. ','
  end
  local px = math.max(ARGV[7], redis.call('PTTL', LOCK))
  redis.call('SET', LOCK, TOKEN .. '|' .. head .. fence .. '|' .. claims .. labels, 'PX', px)
  return { 'G', tonumber(fence), 1 }
end
local left = redis.call('PTTL', LOCK) -- held: by a lease of ours, or by a foreigner, whatever the key's type
if not v or string.byte(v, 65) ~= 124 or not string.find(v, '^%x+|%d+|%d+|%d+|') then return { 'B', left, '' } end
Q = Q or tonumber(string.match(PASS, '%d+$'))
if left < 0 or left > Q then -- no lease is longer than Q: this clock went backwards
  left = Q
  redis.call('PEXPIRE', LOCK, left)
end
return { 'B', left, v }
