-- Releases of which most are: each finds its lease, no resource has a block, and none was ended before. Decides them without what only
-- others need; for all others, nothing was written, and release.lua decides.
-- Release, forced release, and cancel of one attempt: one, or a batch of different resources, each decided as if it were
-- the only one. Does not read the marker: ending a lease is always allowed.
-- KEYS: for each: lock, tombstone of the token (redlockd:gone:TOKEN:RESOURCE), or of the attempt (that and #ATTEMPT)
-- ARGV: the reason, if all are releases for the same reason (the leases end for good). Otherwise for each: '', reason; or
--       attempt (to cancel), tombstone_ms
-- Reply: one release that found its lease: '1'. Otherwise for each, in order: see release.lua.
-- Notices are published while any instance listens (redlockd:notices), which waiters see to before they rely on them.
local KEYS, call, sub, unpack, count = KEYS, redis.call, string.sub, unpack, #KEYS / 2
-- The first two: whether any resource has a block, and whether anybody listens. From then on as KEYS.
local found, reason = call('MGET', 'redlockd:blocks', 'redlockd:notices', unpack(KEYS)), not ARGV[2] and ARGV[1]
local plain = reason and not found[1]
for k = 2, plain and 2 * count or 0, 2 do
  local v = found[k + 1]
  plain = v and not found[k + 2] and string.byte(v, 65) == 124 and string.find(KEYS[k], sub(v, 1, 64), 15, true) == 15
  if not plain then break end
end
if plain then
  local listens = found[2]
  for i = 1, count do found[i] = KEYS[2 * i - 1] end
  call('DEL', unpack(found, 1, count))
  for i = 1, count do
    local tombstone, lock = KEYS[2 * i], found[i]
    local done = redis.pcall('PSETEX', tombstone, '60000', reason) -- TOKEN_TOMBSTONE
    if done.err and not string.find(done.err, 'OOM', 1, true) then return done end -- a full node must still release
    -- The resource, which most key templates leave as it is; those before 2 i are not needed any more.
    KEYS[i], found[i] = #lock == #tombstone - 79 and lock or sub(tombstone, 80), 1
    -- pcall: a Redis user without the right to the channel can still release.
    if listens then redis.pcall('PUBLISH', 'redlockd:freed:' .. KEYS[i], 'r' .. sub(tombstone, 15, 22)) end
  end
  call('ZREM', 'redlockd:leases', unpack(KEYS, 1, count)) -- last: if it is forbidden, the leases are deleted and tombstoned anyway
  return count == 1 and '1' or { unpack(found, 1, count) }
end
for i = 1, reason and count or 0 do ARGV[2 * i - 1], ARGV[2 * i] = '', reason end
