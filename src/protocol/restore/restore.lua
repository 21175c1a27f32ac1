-- Repair: put a lease back after a quorum confirmed its extend. Never a vote.
-- KEYS: 1 meta, 2 lock, 3 fence counter, 4 token tombstone, 5 index
-- ARGV: as in marker.lua, 5 px_ms, 6 fence, 7 value, 8 resource
-- Replies: P | D reason | O 0 | F | K C P
local no = not fit and judge() or nil
if no and no[1] ~= 'Q' and no[1] ~= 'S' then return no end
local fence = tonumber(ARGV[6])
local r = redis.call('MGET', KEYS[4], KEYS[3])
if r[1] then return { 'D', r[1] } end
if fence > math.max(NOW, hw) + GUARD then return { 'F' } end
if not redis.call('SET', KEYS[2], ARGV[7], 'NX', 'PX', ARGV[5]) then return { 'O', 0 } end
redis.call('SET', KEYS[3], math.max(fence, tonumber(r[2]) or 0), 'PX', ARGV[3])
if fence > hw then redis.call('HSET', META, 'hw', fence) end
redis.call('ZADD', KEYS[5], math.floor(NOW / 1000) + ARGV[5], ARGV[8])
return { 'P' }
