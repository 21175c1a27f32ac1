-- One page of a change of names: leases leave the names of the former key template, all of them, and then receive those of the view's.
-- In one step, "x" under `a{resource}` could take the name that "ax" has under `{resource}`. For a process that has installed a view
-- with another template, and is not filled yet: it does not vote, and nobody reads it (read_all.lua). KEYS: 1 meta
-- ARGV: as in marker.lua, 5 key head, 6 key tail, 7 'o' | 'i' (names.lua), 8 cursor (0 at first), 9 count
-- A page that is not of this process's present step begins that step. What is no lease stays. If something else has a lease's new name, the lease
-- becomes a block until its end; a released one is deleted.
-- Replies: D (done) | N step, cursor | K C Q S V
local no = not fit and check_vote() or nil
if not no then return { 'D' } end
if no[1] ~= 'V' or no[2] ~= string.match(PASS, '|(%x+)|%d+$') then return no end
local head, tail, NOW_MS = ARGV[5], ARGV[6], math.floor(NOW / 1000)
local target = head .. '{resource}' .. tail
if not NAMES or NAMES == target then return { 'D' } end
local own = OWN_HEAD .. '{resource}' .. OWN_TAIL
local step = own == target and 'i' or 'o'
if MOVING ~= step then redis.call('SET', 'redlockd:names', own .. ' ' .. step) end
local scan = redis.call('SCAN', ARGV[7] == step and MOVING == step and ARGV[8] or '0', 'COUNT', ARGV[9])
local function move(from, to, value)
  local left = redis.call('PTTL', from)
  if left >= 0 then redis.call('SET', to, value, 'PX', math.max(left, 1)) else redis.call('SET', to, value) end
  redis.call('DEL', from)
end
local longest = Q -- releases use these names whatever the sender names (release.lua)
local function block(resource, token, claims, left)
  if claims == '' then return end
  left = math.max(left < 0 and Q or math.min(left, Q), 1)
  local BLOCK = 'redlockd:block:' .. resource
  local e, c = string.match(redis.call('HMGET', BLOCK, token)[1] or '', '^(%d+)|(.*)$')
  for claim in string.gmatch(c or '', '[^,]+,') do
    if not string.find(claims, claim, 1, true) then claims = claims .. claim end
  end
  left = math.max(left, math.min(e or 0, NOW_MS + Q) - NOW_MS)
  redis.call('HSET', BLOCK, token, string.format('%.0f', NOW_MS + left) .. '|' .. claims)
  if redis.call('PTTL', BLOCK) < left then redis.call('PEXPIRE', BLOCK, left) end
  longest = math.max(longest, left)
end
-- Each lease at the lock's key, or the members: token, claims, remaining ms.
local function leases(resource, key, v)
  if string.sub(v, 1, 2) ~= 'S|' then
    local claims = string.match(v, '^%d+|%d+|%d+|([^|]*)|', 66)
    return claims and { { string.sub(v, 1, 64), claims, redis.call('PTTL', key) } } or {}
  end
  local all, out = redis.call('HGETALL', 'redlockd:m:' .. resource), {}
  for i = 1, #all, 2 do
    local ends, claims = string.match(all[i + 1], '^(%d+)|[^|]*|%d+|%d+|%d+|([^|]*)|')
    if ends and ends - NOW_MS >= 0 then out[#out + 1] = { all[i], claims, ends - NOW_MS } end
  end
  return out
end
for _, key in ipairs(scan[2]) do
  if step == 'o' then
    local is_named = #key > #OWN_HEAD + #OWN_TAIL and string.sub(key, 1, #OWN_HEAD) == OWN_HEAD
      and string.sub(key, #key - #OWN_TAIL + 1) == OWN_TAIL and string.sub(key, 1, 9) ~= 'redlockd:'
    local v, resource = is_named and redis.call('MGET', key)[1], string.sub(key, #OWN_HEAD + 1, #key - #OWN_TAIL)
    local is_lease = v and (string.byte(v, 65) == 124 and string.find(v, '^%x+|%d+|%d+|%d+|')
      or string.sub(v, 1, 2) == 'S|' and redis.call('EXISTS', 'redlockd:m:' .. resource) == 1)
    if is_lease then move(key, 'redlockd:moved:' .. resource, v) end
  elseif string.sub(key, 1, 15) == 'redlockd:moved:' then
    local resource, v = string.sub(key, 16), redis.call('MGET', key)[1]
    local token = v and string.byte(v, 65) == 124 and string.sub(v, 1, 64)
    local reason = token and why_ended({ 'redlockd:gone:' .. token .. ':' .. resource })[1]
    if v and reason and reason ~= 'revoked' then
      redis.call('DEL', key)
    elseif v and redis.call('EXISTS', head .. resource .. tail) == 1 then
      for _, of in ipairs(leases(resource, key, v)) do block(resource, of[1], of[2], of[3]) end
      redis.call('DEL', key)
      if not token then redis.call('DEL', 'redlockd:m:' .. resource) end
    elseif v then
      move(key, head .. resource .. tail, v)
    end
  end
end
if longest > math.max(redis.call('PTTL', 'redlockd:blocks'), 0) then
  redis.call('SET', 'redlockd:blocks', '1', 'PX', longest)
end
if scan[1] ~= '0' then return { 'N', step, scan[1] } end
if step == 'i' then
  redis.call('SET', 'redlockd:names', target)
  return { 'D' }
end
redis.call('SET', 'redlockd:names', target .. ' i')
return { 'N', 'i', '0' }
