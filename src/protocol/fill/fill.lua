-- One page of what a process that lost its vote is filled with. It only adds: nothing here ends a lease, a block or a
-- tombstone, and none is shortened, but for what a block here had beyond a quarantine (blocks.lua). KEYS: 1 meta, 2 index
-- ARGV: as in marker.lua, 5 nonce, 6 page (from 1), 7 pages, 8 key head, 9 key tail, 10 view, 11 its record, 12 1: it is part
--       of what is to be known after the fill that this process keeps its keys, then for each entry:
--       kind, resource, px_ms, token, value
-- kinds: t tombstone (resource: its whole key; value: the reason) | c copy of a lease (value: the lock's, or M and a member's) |
--        k the same where this process has the token's lease (fence 0: with its own), else a block | b block (value: the token's claims) |
--        f foreign lock (value: the lock's, '' = not known)
-- Replies: F pages done | X pages done (another page is next) | A (the view is not above its own, or not
--   promised, or names another process, or what it was to keep is lost)
--   | K C P
-- meta's field fill: view|nonce|pages|pages done; gone after each loss of the vote.
-- The quarantine here outlasts whatever is filled in, which instances with another max_ttl than the sender's may hold.
local asked = tonumber(string.match(PASS, '%d+$'))
for at = 13, #ARGV, 5 do
  if ARGV[at] ~= 't' and ARGV[at] ~= 'f' then asked = math.max(asked, ARGV[at + 2]) end
end
PASS = string.gsub(PASS, '%d+$', string.format('%.0f', asked))
local no, V = check_vote(), ARGV[10]
if no and no[1] ~= 'Q' and no[1] ~= 'S' and no[1] ~= 'V' then return no end
-- A view in which this process has voted would not know its own votes; it must name this very process, and be the last one that it
-- promised: a process that forgot once more has to serve its quarantine first.
local x, RUN = redis.call('HMGET', META, 'view', 'fill', 'filled', 'promised', 'pending'), string.match(PASS, '^%x*')
local keeps = no and no[1] == 'V' and x[5] == V -- in both lists of a change: it keeps its keys, and the record that it installed
if ARGV[12] == '1' and not keeps then return { 'A' } end
if not keeps and V <= (x[1] or NONE) or V ~= (x[4] or NONE) or not string.find(ARGV[11], ' ' .. RUN .. ' ' .. V, 1, true) then return { 'A' } end
local named = ARGV[8] .. '{resource}' .. ARGV[9]
if keeps and NAMES and NAMES ~= named then return { 'A' } end -- its own keys do not have these names yet
if not keeps and (not no or no[1] == 'V') then -- it votes in a view that the new one replaces
  check_vote('replaced')
  x[2] = nil
end
local NOW_MS, page, head, tail = math.floor(NOW / 1000), tonumber(ARGV[6]), ARGV[8], ARGV[9]
local this = V .. '|' .. ARGV[5] .. '|' .. ARGV[7]
local begun, done = string.match(x[2] or '', '^(.*)|(%d+)$')
done = begun == this and tonumber(done) or 0
if page <= done then return { 'F', done } end
if page ~= done + 1 then return { 'X', done } end
if not keeps and NAMES ~= named and (NAMES or string.find(ARGV[11], '\n=settings %d+ %d+ %d+ %S')) then
  redis.call('SET', 'redlockd:names', named) -- its keys from before count for nothing
  if redis.call('PTTL', 'redlockd:blocks') < Q then redis.call('SET', 'redlockd:blocks', '1', 'PX', Q) end
end
local longest, ended_for, revoked_for, index = 0, 0, 0, {}
local function union(claims, more)
  for claim in string.gmatch(more, '[^,]+,') do
    if not string.find(claims, claim, 1, true) then claims = claims .. claim end
  end
  return claims
end
-- A key of this token here does not outlast the block: it would vote again.
local function own_left(resource, token)
  local LOCK = head .. resource .. tail
  local v = redis.call('MGET', LOCK)[1] or ''
  if string.sub(v, 1, 65) == token .. '|' then return redis.call('PTTL', LOCK) end
  local ends = string.byte(v) == 83 and redis.call('HMGET', 'redlockd:m:' .. resource, token)[1] or ''
  return (string.match(ends, '^%d+') or 0) - NOW_MS
end
local function block(resource, token, claims, px)
  px = math.max(px, own_left(resource, token))
  local BLOCK, ends = 'redlockd:block:' .. resource, NOW_MS + px
  local e, c = string.match(redis.call('HMGET', BLOCK, token)[1] or '', '^(%d+)|(.*)$')
  e = math.min(e or 0, token == '*' and 1e15 or NOW_MS + Q) -- as in blocks.lua
  ends, claims = math.max(ends, e), union(c or '', claims)
  redis.call('HSET', BLOCK, token, string.format('%.0f', ends) .. '|' .. claims)
  local left = ends - NOW_MS
  if redis.call('PTTL', BLOCK) < left then redis.call('PEXPIRE', BLOCK, left) end
  longest = math.max(longest, left)
end
-- The reason in this token's tombstone here, and its claims without attempts that were cancelled here.
local function ended(resource, token, claims)
  local GONE = 'redlockd:gone:' .. token .. ':' .. resource
  for attempt in string.gmatch(claims, '(a%x+),') do
    if redis.call('EXISTS', GONE .. '#' .. attempt) == 1 then
      local a, b = string.find(claims, attempt .. ',', 1, true)
      claims = string.sub(claims, 1, a - 1) .. string.sub(claims, b + 1)
    end
  end
  return why_ended({ GONE })[1], claims
end
local function copy(resource, token, px, value, claims, only_own)
  local LOCK = head .. resource .. tail
  local v = redis.call('MGET', LOCK)[1]
  local renewals, ttl, fence, _, labels = string.match(value, '^(%d+)|(%d+)|(%d+)|([^|]*)|(.*)$', 66)
  if v then
    local r, f, c = string.match(v, '^(%d+)|%d+|(%d+)|([^|]*)|', 66)
    if string.sub(v, 1, 65) ~= token .. '|' or not r then return false end
    claims, px = union(c, claims), math.max(px, redis.call('PTTL', LOCK))
    if tonumber(f) > tonumber(fence) then fence = f end
    if tonumber(r) > tonumber(renewals) then renewals = r end
  elseif only_own or redis.call('EXISTS', LOCK) == 1 then
    return false -- of another type
  end
  redis.call('SET', LOCK, table.concat({ token, renewals, ttl, fence, claims, labels }, '|'), 'PX', px)
  index[#index + 1], index[#index + 2] = NOW_MS + px, resource
  return true
end
-- A member beside those that it may be held with; false: something else is there.
local function copy_member(resource, token, px, value, claims, only_own)
  local LOCK, HASH = head .. resource .. tail, 'redlockd:m:' .. resource
  local mode, renewals, ttl, fence, labels = string.match(value, '^M([^|]*)|%x+|(%d+)|(%d+)|(%d+)|[^|]*|(.*)$')
  if not mode then return false end
  local kind, slot, ends = 'S|' .. string.gsub(mode, '%d+/', ''), string.match(mode, '^p(%d+)/'), NOW_MS + px
  local v, all, others, own = redis.call('MGET', LOCK)[1], redis.call('HGETALL', HASH), 0, false
  if not v then
    if only_own then return false end
    if redis.call('EXISTS', LOCK) == 1 then return false end -- of another type
    if #all > 0 then redis.call('DEL', HASH) end
    all = {}
  elseif v ~= kind then
    return false
  end
  for i = 1, #all, 2 do
    local e, m, r = string.match(all[i + 1], '^(%d+)|([^|]*)|(.*)$')
    if tonumber(e or 0) < NOW_MS then
      redis.call('HDEL', HASH, all[i])
    elseif all[i] == token then
      if m ~= mode then return false end
      local n, f, c = string.match(r, '^(%d+)|%d+|(%d+)|([^|]*)|')
      claims, ends, others, own = union(c, claims), math.max(ends, e), others + 1, true
      if tonumber(fence) == 0 then fence = f end -- else a quorum has given it to this lease
      if tonumber(n) > tonumber(renewals) then renewals = n end
    else
      others = others + 1
      if slot and string.match(m, '^p(%d+)/') == slot then return false end
    end
  end
  if v and others == 0 or only_own and not own then return false end -- a foreign client's value
  redis.call('SET', LOCK, kind, 'NX', 'PX', px)
  local rest = table.concat({ mode, renewals, ttl, fence, claims, labels }, '|')
  redis.call('HSET', HASH, token, string.format('%.0f', ends) .. '|' .. rest)
  for _, key in ipairs({ LOCK, HASH }) do
    if redis.call('PTTL', key) < ends - NOW_MS then redis.call('PEXPIRE', key, ends - NOW_MS) end
  end
  index[#index + 1], index[#index + 2] = ends, resource
  return true
end
for at = 13, #ARGV, 5 do
  local kind, resource, px, token, value = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2]), ARGV[at + 3], ARGV[at + 4]
  if kind == 't' then
    local before, left = why_ended({ resource })[1], redis.call('PTTL', resource)
    if not before or before == 'revoked' then before = value end -- otherwise the first reason stays
    redis.call('SET', resource, before, 'PX', math.max(px, left))
    ended_for = math.max(ended_for, px, left)
    if before == 'revoked' then revoked_for = math.max(revoked_for, px, left) end
  elseif kind == 'f' then
    block(resource, '*', '', px)
    if value ~= '' then redis.call('SET', head .. resource .. tail, value, 'NX', 'PX', px) end
  else
    local is_member = (kind == 'c' or kind == 'k') and string.byte(value) == 77
    local plain = is_member and string.match(value, '^M[^|]*|(.*)$') or value
    local had = kind == 'b' and value or string.match(plain, '^%d+|%d+|%d+|([^|]*)|', 66)
    local reason, claims = ended(resource, token, had)
    -- A revoked lease is held until its end, and is never copied: a copy would be a vote.
    if (not reason or reason == 'revoked') and claims ~= '' then
      local put = is_member and copy_member or copy
      local copied = kind ~= 'b' and not reason and put(resource, token, px, value, claims, kind == 'k')
      if not copied then block(resource, token, claims, px) end
    end
  end
end
if longest > math.max(redis.call('PTTL', 'redlockd:blocks'), 0) then
  redis.call('SET', 'redlockd:blocks', '1', 'PX', longest)
end
expect_late(2 * GUARD + 1000000)
if ended_for > 0 then have_keys(ended_for) end
if revoked_for > math.max(redis.call('PTTL', 'redlockd:revoked'), 0) then redis.call('SET', 'redlockd:revoked', '1', 'PX', revoked_for) end -- as in revoke.lua
if #index > 0 then redis.call('ZADD', KEYS[2], unpack(index)) end
redis.call('HSET', META, 'fill', this .. '|' .. page, 'filled', V > (x[3] or NONE) and V or x[3])
return { 'F', page }
