-- Forced release of a foreign client's lock, only if it still has the value that the operator saw.
-- KEYS: 1 lock   ARGV: 1 fingerprint, 2 channel
-- Replies: R | M | O
local kind = redis.call('TYPE', KEYS[1]).ok
if kind == 'none' then return { 'M', '' } end
local fingerprint = kind == 'string' and redis.sha1hex(redis.call('GET', KEYS[1])) or 'type:' .. kind
if fingerprint ~= ARGV[1] then return { 'O', '' } end
redis.call('DEL', KEYS[1])
redis.pcall('PUBLISH', ARGV[2], '') -- a user without the right to the channel deletes all the same
return { 'R', '' }
