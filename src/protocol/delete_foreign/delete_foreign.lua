-- Forced release of a foreign client's lock, only if it still has the value that the operator saw.
-- KEYS: 1 lock, 2 block   ARGV: 1 fingerprint, 2 channel
-- Replies: R | M | O
local LOCK = lock_of(string.sub(KEYS[2], 16), KEYS[1])
local kind = redis.call('TYPE', LOCK).ok
if kind == 'none' then return { 'M', '' } end
local fingerprint = kind == 'string' and redis.sha1hex(redis.call('GET', LOCK)) or 'type:' .. kind
if fingerprint ~= ARGV[1] then return { 'O', '' } end
if string.sub(kind == 'string' and redis.call('GET', LOCK) or '', 1, 2) == 'S|'
  and redis.call('EXISTS', 'redlockd:m:' .. string.sub(KEYS[2], 16)) == 1 then
  return { 'O', '' } -- members: no foreign client's
end
redis.call('DEL', LOCK)
if redis.call('HDEL', KEYS[2], '*') == 1 then -- the block that stands for this lock; others keep theirs
  local others, longest, t = redis.call('HGETALL', KEYS[2]), 0, redis.call('TIME')
  for n = 2, #others, 2 do longest = math.max(longest, string.match(others[n], '^%d+')) end
  if longest > 0 then redis.call('PEXPIRE', KEYS[2], math.max(longest - math.floor(t[1] * 1000 + t[2] / 1000), 0)) end
end
redis.pcall('PUBLISH', ARGV[2], '') -- a user without the right to the channel deletes all the same
return { 'R', '' }
