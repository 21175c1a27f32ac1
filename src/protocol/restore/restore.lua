-- Repair: put a lease back after a quorum confirmed its extend. Never a vote.
-- KEYS: 1 meta, 2 lock, 3 token tombstone, 4 index
-- ARGV: as in marker.lua, 5 px_ms, 6 fence, 7 value, 8 resource
-- The sender's view is that in which the extend was confirmed: a process that votes takes it in that view only.
-- Replies: P | D reason | O 0 | F | K C P V
local no = not fit and check_vote() or nil
if no and no[1] ~= 'Q' and no[1] ~= 'S' then return no end
local names = no and redis.call('MGET', 'redlockd:names')[1]
if names and string.gsub(names, '{resource}', ARGV[8]) ~= KEYS[2] then return no end -- locks have other names here
local LOCK, VALUE, fence, px = KEYS[2], ARGV[7], tonumber(ARGV[6]), tonumber(ARGV[5])
local NOW_MS = math.floor(NOW / 1000)
local ended, r = why_ended({ KEYS[3] })[1], redis.call('MGET', LOCK, 'redlockd:blocks')
if ended then return { 'D', ended } end
if fence > math.max(NOW, hw) + GUARD then return { 'F' } end
local BLOCK = 'redlockd:block:' .. ARGV[8]
local left = r[2] and redis.call('PTTL', BLOCK) or -2
if string.byte(VALUE) == 77 then -- M: a member
  -- A block may stand for other members, which this one does not exclude: it stays.
  if left ~= -2 or r[1] and string.sub(r[1], 1, 2) ~= 'S|' then return { 'O', 0 } end
elseif left == -2 then
  if not redis.call('SET', LOCK, VALUE, 'NX', 'PX', px) then return { 'O', 0 } end
else
  -- An older extend's repair would take away a block that stands for another lease.
  local filled = redis.call('HMGET', META, 'filled')[1] or NONE
  if string.match(PASS, '|(%x+)|%d+$') < filled then return { 'O', 0 } end
  -- The lease takes the place of the block, which may stand for other leases too: it ends no earlier
  if r[1] then
    local had = string.sub(r[1], 1, 65) == string.sub(VALUE, 1, 65) and string.match(r[1], '^%d+|%d+|(%d+)|', 66)
    if not had or tonumber(had) > fence then return { 'O', 0 } end -- another token's, or this token's next lease
    left = math.max(left, redis.call('PTTL', LOCK))
  elseif redis.call('EXISTS', LOCK) == 1 then
    return { 'O', 0 } -- of another type
  end
  px = math.max(px, left)
  redis.call('SET', LOCK, VALUE, 'PX', px)
  redis.call('DEL', BLOCK)
end
local function stored()
  expect_late(2 * GUARD + 1000000) -- an acquire of this token may still arrive here after its release
  keep_fence(ARGV[8], fence)
  redis.call('ZADD', KEYS[4], NOW_MS + px, ARGV[8])
  return { 'P' }
end
if string.byte(VALUE) ~= 77 then return stored() end
