-- Release, cancel of one attempt, forced release: one or several, of different resources, each as if it had come
-- alone. No prelude: giving back is always allowed.
-- KEYS: 1 index, then for each: lock, tombstone (of the token, or of the attempt)
-- ARGV: for each: token hash, attempt ('' = the lease ends for good), tombstone_ms, reason, channel, resource
-- Reply: for each, in order: 1 (released here, never ended before), or a list: R|M|O, reason of an earlier tombstone
--        or '': released here | nothing here | another's
local found = redis.call('MGET', unpack(KEYS, 2))
local out, gone, over, told, k, at = {}, {}, {}, {}, 1, 0
for i = 1, #found / 2 do
  local v, before, code, last = found[k], found[k + 1], 'M', false
  local LOCK, TOKEN, AT = KEYS[k + 1], ARGV[at + 1], ARGV[at + 2]
  if not v then
    if redis.call('EXISTS', LOCK) == 1 then code = 'O' end -- of another type
  elseif string.sub(v, 1, 65) ~= TOKEN .. '|' then
    code = 'O'
  elseif AT == '' then
    code, last = 'R', true
  else -- withdraw one attempt's claim; others may still hold
    local head, claims, tail = string.match(v, '^(%d+|%d+|%d+|)([^|]*)(|.*)$', 66)
    local a, b
    if head then a, b = string.find(claims, AT .. ',', 1, true) end
    code = a and 'R' or 'O'
    if a then
      local rest = string.sub(claims, 1, a - 1) .. string.sub(claims, b + 1)
      last = rest == ''
      if not last then redis.pcall('SET', LOCK, TOKEN .. '|' .. head .. rest .. tail, 'KEEPTTL') end
    end
  end
  if last then
    gone[#gone + 1], over[#over + 1] = LOCK, ARGV[at + 6]
    -- A withdrawn attempt mostly had no quorum: waiters are not to wake each other with theirs.
    told[#told + 1], told[#told + 2] = ARGV[at + 5], (AT == '' and 'r' or 'c') .. string.sub(TOKEN, 1, 8)
  end
  out[i] = not before and code == 'R' and 1 or { code, before or '' }
  k, at = k + 2, at + 6
end
if #gone > 0 then redis.call('DEL', unpack(gone)) end
k, at = 1, 0
for i = 1, #out do
  -- The first reason stays, save that a release ends a revocation.
  local before = found[k + 1]
  if not before or before == 'revoked' then
    local done = redis.pcall('SET', KEYS[k + 2], ARGV[at + 4], 'PX', ARGV[at + 3])
    if done.err and not string.find(done.err, 'OOM', 1, true) then return done end -- a full node must still let go
  end
  k, at = k + 2, at + 6
end
if #gone > 0 then -- these come last: were they forbidden, the leases would be gone and buried all the same
  redis.call('ZREM', KEYS[1], unpack(over))
  -- pcall: a user without the right to the channel releases all the same.
  for n = 1, #told, 2 do redis.pcall('PUBLISH', told[n], told[n + 1]) end
end
return out
