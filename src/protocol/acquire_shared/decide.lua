local no = not fit and check_vote() or nil
if no then return no end
local SEEN = 32 -- of shared leases all members are read once for so many changes, and those that are over removed
local LOCK, HASH, TOKEN, ATTEMPT, KIND, MODE = KEYS[3], KEYS[6], ARGV[5], ARGV[8] .. ',', ARGV[11], ARGV[12]
local ended, found = why_ended({ KEYS[4] })[1], redis.call('MGET', LOCK, KEYS[5], KEYS[7], 'redlockd:blocks')
local v, intent = found[1], found[3]
if ended then return { 'D', ended } end -- this token was released
if found[2] then return { 'D', 'cancelled' } end -- this attempt was cancelled before it arrived
if found[4] then
  local block = redis.call('PTTL', 'redlockd:block:' .. ARGV[10])
  if block ~= -2 then return { 'W', cut_block(ARGV[10], block) } end -- for every mode, also to a member: it may stand for another lease
end
if v and string.sub(v, 1, 2) ~= 'S|' then
  local left = redis.call('PTTL', LOCK)
  if string.byte(v, 65) ~= 124 or not string.find(v, '^%x+|%d+|%d+|%d+|') then return { 'B', left, '' } end
  if string.sub(v, 1, 65) == TOKEN .. '|' then return { 'Y', 'e' } end
  if left < 0 or left > Q then -- as in acquire.lua
    left = Q
    redis.call('PEXPIRE', LOCK, left)
  end
  return { 'B', left, v }
end
local want, px = tonumber(ARGV[13]), tonumber(ARGV[7])
if want > math.max(NOW, hw) + GUARD then return { 'F' } end
-- Each number is given once: a proposed one only if it is above all that this node gave.
local function next_fence()
  local base, counter = begin_generation(), last_fence(ARGV[10])
  local fence = math.max(SENT, base + 1, counter + 1)
  if want > math.max(base, counter) then fence = want end
  keep_fence(ARGV[10], fence)
  return string.format('%.0f', fence)
end
local slot, most = string.match(MODE, '^p(%d+)/'), tonumber(ARGV[14])
local mine, is_taken, is_full, over, count = nil, false, false, {}, 0
if v then count = count_of(HASH) end
if not v then
  if redis.call('EXISTS', LOCK) == 1 then return { 'B', redis.call('PTTL', LOCK), '' } end -- of another type
  redis.call('DEL', HASH) -- somebody deleted the lock's key
elseif KIND == 's' and count < most and count % SEEN > 0 then
  -- The key lasts as long as the longest member: one of them lives, and whoever is over leaves with a later change.
  mine = member_of(HASH, TOKEN)
else
  local living, _, _, gone = members_of(HASH)
  over = gone
  if #living == 0 then return { 'B', redis.call('PTTL', LOCK), '' } end -- a foreign client's value
  is_full = #living >= most
  for _, of in ipairs(living) do
    if of[1] == TOKEN then mine = of end
    is_taken = is_taken or slot and string.match(of[3], '^p(%d+)/') == slot
  end
end
if mine then -- the same token again: the replay joins the lease
  if mine[3] ~= MODE then return { 'Y', mine[3] } end
  local head, fence, claims, labels = string.match(mine[4], '^(%d+|%d+|)(%d+)|([^|]*)(|.*)$')
  local known = string.find(claims, ATTEMPT, 1, true)
  if not known and #claims >= 288 then return { 'X' } end -- MAX_CLAIMS claims of 18 bytes each
  if not known then claims = claims .. ATTEMPT end
  if want > tonumber(fence) then fence = next_fence() end
  local ends = math.max(mine[2], NOW_MS + px)
  store(LOCK, HASH, over, TOKEN, ends, MODE, head .. fence .. '|' .. claims .. labels, px)
  return { 'G', tonumber(fence), 1 }
end
if v and v ~= 'S|' .. KIND then return held_by(LOCK, HASH, v, redis.call('PTTL', LOCK), 0) end
local is_own = intent and string.sub(intent, 1, 64) == TOKEN
local INTENT = 2000 -- ms, as in acquire.lua
local intended = intent and not is_own and redis.call('PTTL', KEYS[7])
if intended and intended <= INTENT and string.match(intent, '|(%w+)$') ~= KIND then -- another caller is next
  return held_by(LOCK, HASH, v, intended, 1)
end
if is_taken or is_full then return held_by(LOCK, HASH, v, nil, 0) end
local fence = next_fence() -- stored before any lease has it
if not v then redis.call('SET', LOCK, 'S|' .. KIND, 'PX', px) end
store(LOCK, HASH, over, TOKEN, NOW_MS + px, MODE, '000000|' .. ARGV[6] .. '|' .. fence .. '|' .. ATTEMPT .. '|' .. ARGV[9], px)
if is_own then redis.call('DEL', KEYS[7]) end
redis.call('ZADD', KEYS[2], NOW_MS + px, ARGV[10])
return { 'G', tonumber(fence), 0 }
