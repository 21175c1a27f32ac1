-- Why tokens' leases were ended for good. A release writes its reason and time into a hash, where it counts for TOKEN_TOMBSTONE: in
-- redlockd:ended, which a probe renames to redlockd:ended:old after as long (admin.lua), so that those of a minute are dropped
-- at once. A revocation, which lasts longer, and a fill write a key with a TTL. A release replaces a revocation. Needs NOW (us).
-- names: of tombstones (redlockd:gone:TOKEN:RESOURCE). Returns the reason of each, or false.
local function why_ended(names)
  local out = redis.call('MGET', unpack(names))
  for _, hash in ipairs({ 'redlockd:ended:old', 'redlockd:ended' }) do
    for i, v in ipairs(redis.call('HMGET', hash, unpack(names))) do
      local reason, s, us = string.match(v or '', '^(%l+)|(%d+)|(%d+)$')
      if reason and NOW - s * 1000000 - us <= 60000000 then out[i] = reason end
    end
  end
  return out
end
-- For us from now on, acquires of one exclusive lease read the tombstones of their tokens also if they are the first requests with
-- them (acquire/plain.lua): one of them may be late. A node without a marker grants nothing.
local function expect_late(us)
  local x = redis.call('HMGET', 'redlockd:meta', 'run', 'late')
  if x[1] and (x[2] or 0) - NOW < us then redis.pcall('HSET', 'redlockd:meta', 'late', string.format('%.0f', NOW + us)) end
end
-- For ms from now on, there may be tombstones that are keys.
local function have_keys(ms)
  if redis.call('PTTL', 'redlockd:tombstones') < ms then redis.pcall('SET', 'redlockd:tombstones', '1', 'PX', ms) end
end
