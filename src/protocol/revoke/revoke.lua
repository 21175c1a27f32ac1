-- No further renewals: the lease keeps its current end. KEYS: 1 lock, 2 token tombstone
-- ARGV: 1 token hash, 2 keep_ms (how long the tombstone outlives the lease)
-- Replies: V pttl | M | O 0
local v = redis.call('MGET', KEYS[1])[1]
if not v then return redis.call('EXISTS', KEYS[1]) == 0 and { 'M' } or { 'O', 0 } end
if string.sub(v, 1, 65) ~= ARGV[1] .. '|' then return { 'O', 0 } end
local left = redis.call('PTTL', KEYS[1])
redis.call('SET', KEYS[2], 'revoked', 'PX', left + ARGV[2])
return { 'V', left }
