-- No further renewals: the lease keeps its current end. KEYS: 1 lock, 2 token tombstone, 3 block
-- ARGV: 1 token hash, 2 keep_ms (how long the tombstone outlives the lease)
-- The token stays in the resource's block: until its end the lease is held. Replies: V pttl | M | O 0
local LOCK = lock_of(string.sub(KEYS[3], 16), KEYS[1])
local v = redis.call('MGET', LOCK)[1]
local left = redis.call('HMGET', KEYS[3], ARGV[1])[1] and redis.call('PTTL', KEYS[3])
local of = v and string.sub(v, 1, 2) == 'S|' and redis.call('HMGET', 'redlockd:m:' .. string.sub(KEYS[3], 16), ARGV[1])[1]
local t = of and redis.call('TIME')
local member = of and string.match(of, '^%d+') - t[1] * 1000 - math.floor(t[2] / 1000) or -1
if member >= 0 then
  left = math.max(left or 0, member)
elseif v and string.sub(v, 1, 65) == ARGV[1] .. '|' then
  left = math.max(left or 0, redis.call('PTTL', LOCK))
elseif not left then
  return not v and redis.call('EXISTS', LOCK) == 0 and { 'M' } or { 'O', 0 }
end
local before = redis.call('MGET', KEYS[2])[1]
if not before or before == 'revoked' then redis.call('SET', KEYS[2], 'revoked', 'PX', left + ARGV[2]) end
-- While these exist, a release reads tombstones also where it finds its lease, and an acquire those that are keys.
for _, key in ipairs({ 'redlockd:revoked', 'redlockd:tombstones' }) do
  if redis.call('PTTL', key) < left + ARGV[2] then redis.call('SET', key, '1', 'PX', left + ARGV[2]) end
end
return { 'V', left }
