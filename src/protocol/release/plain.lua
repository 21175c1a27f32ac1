-- Releases of which most are: each finds its lease, no resource has a block, and none was ended before. Decides them without what only
-- others need; for all others, nothing was written, and release.lua decides.
-- Release, forced release, and cancel of one attempt: one, or a batch of different resources, each decided as if it were
-- the only one. Does not read the marker: ending a lease is always allowed.
-- KEYS: for each: lock, tombstone of the token (redlockd:gone:TOKEN:RESOURCE), or of the attempt (that and #ATTEMPT)
-- ARGV: for each: '' (the lease ends for good), reason; or attempt (to cancel), tombstone_ms
-- Reply: one release that found its lease: '1'. Otherwise for each, in order: see release.lua.
-- Notices are published while any instance listens (redlockd:notices), which waiters see to before they rely on them.
local call, sub, count = redis.call, string.sub, #KEYS / 2
-- The first two: whether any resource has a block, and whether anybody listens. From then on as KEYS.
local found = call('MGET', 'redlockd:blocks', 'redlockd:notices', unpack(KEYS))
local plain = not found[1]
for k = 2, plain and 2 * count or 0, 2 do
  local v = found[k + 1]
  plain = v and ARGV[k - 1] == '' and not found[k + 2] and sub(v, 1, 64) == sub(KEYS[k], 15, 78) and string.byte(v, 65) == 124
  if not plain then break end
end
if plain then
  local listens = found[2]
  for i = 1, count do found[i] = KEYS[2 * i - 1] end
  call('DEL', unpack(found, 1, count))
  for i = 1, count do
    local tombstone = KEYS[2 * i]
    local done = redis.pcall('SET', tombstone, ARGV[2 * i], 'PX', '60000') -- TOKEN_TOMBSTONE
    if done.err and not string.find(done.err, 'OOM', 1, true) then return done end -- a full node must still release
    KEYS[i], found[i] = sub(tombstone, 80), 1 -- those before 2 i are not needed any more
    -- pcall: a Redis user without the right to the channel can still release.
    if listens then redis.pcall('PUBLISH', 'redlockd:freed:' .. KEYS[i], 'r' .. sub(tombstone, 15, 22)) end
  end
  call('ZREM', 'redlockd:leases', unpack(KEYS, 1, count)) -- last: if it is forbidden, the leases are deleted and tombstoned anyway
  return count == 1 and '1' or { unpack(found, 1, count) }
end
