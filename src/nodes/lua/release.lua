-- Release, cancel of one attempt, forced release. No prelude: giving back is always allowed.
-- KEYS: 1 lock, 2 tombstone (of the token, or of the attempt), 3 index
-- ARGV: 1 token hash, 2 attempt ('' = the lease ends for good), 3 tombstone_ms, 4 reason, 5 channel, 6 resource
-- Replies: {R|M|O, reason of an earlier tombstone or ''}: released here | nothing here | another's
local LOCK, TOKEN, AT = KEYS[1], ARGV[1], ARGV[2]
local r = redis.call('MGET', LOCK, KEYS[2])
local v, out, last = r[1], 'M', false
if not v then
  if redis.call('EXISTS', LOCK) == 1 then out = 'O' end -- of another type
elseif string.sub(v, 1, 65) ~= TOKEN .. '|' then
  out = 'O'
elseif AT == '' then
  out, last = 'R', true
else -- withdraw one attempt's claim; others may still hold
  local head, claims, tail = string.match(v, '^(%d+|%d+|%d+|)([^|]*)(|.*)$', 66)
  local a, b = string.find(claims, AT .. ',', 1, true)
  out = a and 'R' or 'O'
  if a then
    local rest = string.sub(claims, 1, a - 1) .. string.sub(claims, b + 1)
    last = rest == ''
    if not last then redis.pcall('SET', LOCK, TOKEN .. '|' .. head .. rest .. tail, 'KEEPTTL') end
  end
end
if last then redis.call('DEL', LOCK) end
-- The first reason stays, save that a release ends a revocation.
if not r[2] or r[2] == 'revoked' then
  local done = redis.pcall('SET', KEYS[2], ARGV[4], 'PX', ARGV[3])
  if done.err and not string.find(done.err, 'OOM', 1, true) then return done end -- a full node must still let go
end
if last then -- these come last: were they forbidden, the lease would be gone and buried all the same
  redis.call('ZREM', KEYS[3], ARGV[6])
  -- A withdrawn attempt mostly had no quorum: waiters are not to wake each other with theirs.
  -- pcall: a user without the right to the channel releases all the same.
  redis.pcall('PUBLISH', ARGV[5], (AT == '' and 'r' or 'c') .. string.sub(TOKEN, 1, 8))
end
return { out, r[2] or '' }
