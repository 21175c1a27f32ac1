-- Releases of which most are: each finds its lease, no resource has a block, and no lease is revoked. Decides them without what only
-- others need; for all others, nothing was written, and release.lua decides.
-- Release, forced release, and cancel of one attempt: one, or a batch of different resources, each decided as if it were
-- the only one. Does not read the marker: ending a lease is always allowed.
-- KEYS: for each: lock, tombstone of the token (redlockd:gone:TOKEN:RESOURCE: a field, see ended.lua), or of the attempt (that and
--       #ATTEMPT: a key)
-- ARGV: the reason, if all are releases for the same reason (the leases end for good). Otherwise for each: '', reason; or
--       attempt (to cancel), tombstone_ms
-- Reply: one release that found its lease: '1'. Otherwise for each, in order: see release.lua.
-- Notices are published while any instance listens (redlockd:notices), which waiters see to before they rely on them.
local KEYS, call, sub, unpack, count, locks = KEYS, redis.call, string.sub, unpack, #KEYS / 2, {}
for i = 1, count do locks[i] = KEYS[2 * i - 1] end
-- The first three: whether any resource has a block, whether anybody listens, and whether any lease is revoked. Then the locks.
local found, reason = call('MGET', 'redlockd:blocks', 'redlockd:notices', 'redlockd:revoked', unpack(locks)), not ARGV[2] and ARGV[1]
local plain = reason and not found[1] and not found[3]
for i = 1, plain and count or 0 do
  local v = found[i + 3]
  plain = v and string.byte(v, 65) == 124 and string.find(KEYS[2 * i], sub(v, 1, 64), 15, true) == 15
  if not plain then break end
end
local t = call('TIME')
if plain then
  local listens, ended = found[2], reason .. '|' .. t[1] .. '|' .. t[2]
  call('DEL', unpack(locks))
  for i = 1, count do
    local tombstone, lock = KEYS[2 * i], locks[i]
    KEYS[2 * i - 1], KEYS[2 * i] = tombstone, ended
    if #lock ~= #tombstone - 79 then locks[i] = sub(tombstone, 80) end -- the resource, which most key templates leave as it is
    -- pcall: a Redis user without the right to the channel can still release.
    if listens then redis.pcall('PUBLISH', 'redlockd:freed:' .. locks[i], 'r' .. sub(tombstone, 15, 22)) end
  end
  local done = redis.pcall('HSET', 'redlockd:ended', unpack(KEYS))
  if type(done) == 'table' and not string.find(done.err, 'OOM', 1, true) then return done end -- a full node must still release
  call('ZREM', 'redlockd:leases', unpack(locks)) -- last: if it is forbidden, the leases are deleted and tombstoned anyway
  if count == 1 then return '1' end
  for i = 1, count do locks[i] = 1 end
  return locks
end
local NOW = t[1] * 1000000 + t[2]
for i = 1, reason and count or 0 do ARGV[2 * i - 1], ARGV[2 * i] = '', reason end
