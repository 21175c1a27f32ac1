-- Acquire of several resources with one token: all of them, or none. Each lease is as acquire.lua leaves it, or acquire_shared.
-- KEYS: 1 meta, 2 index, then for each resource: lock, token tombstone, attempt tombstone
-- ARGV: as in marker.lua, 5 token hash, 6 ttl_ms, 7 px_ms (ttl + lock_delay), 8 attempt, 9 labels, 10 kind (e: exclusive, s: shared),
--       11 how many members a resource may have, then each resource
-- Reply: Y and for each its fence and 1 if the token had it, else 0; or N and for each that keeps the set out its number and
--        why, as acquire.lua replies: B pttl value | H left ... | Y mode | D reason | X | W left; or K C P Q S V
local no = not fit and check_vote() or nil
if no then return no end
local TOKEN, TTL, PX, ATTEMPT = ARGV[5], ARGV[6], tonumber(ARGV[7]), ARGV[8]
local LABELS, IS_SHARED = ARGV[9], ARGV[10] == 's'
local NOW_MS, INTENT = math.floor(NOW / 1000), 2000 -- ms, as in acquire.lua
-- The first two: whether any resource has a block, or an intent. From then on as KEYS.
local found = redis.call('MGET', 'redlockd:blocks', 'redlockd:intents', unpack(KEYS, 3))
-- beside: those that only members decide about; intended: those that another caller's intent keeps out; own: that have its own
local count, why, had, beside, intended, own_intent = (#found - 2) / 3, {}, {}, nil, {}, {}
local tombstones = {}
for i = 1, count do tombstones[i] = KEYS[3 * i + 1] end
local ended = why_ended(tombstones)
for i = 1, count do
  local k = 3 * i - 1
  local v, LOCK = found[k + 1], KEYS[k + 1]
  local block = found[1] and redis.call('PTTL', 'redlockd:block:' .. ARGV[11 + i]) or -2
  local intent = found[2] and redis.call('MGET', 'redlockd:i:' .. ARGV[11 + i])[1]
  intent = intent and redis.call('PTTL', 'redlockd:i:' .. ARGV[11 + i]) <= INTENT and intent
  if intent and string.sub(intent, 1, 64) == TOKEN then
    own_intent[i] = true
  elseif intent and not (IS_SHARED and string.sub(intent, -2) == '|s') then
    intended[i] = v or false
  end
  if ended[i] then
    why[i] = { 'D', ended[i] } -- this token was released
  elseif found[k + 3] then
    why[i] = { 'D', 'cancelled' } -- this attempt was cancelled before it arrived
  elseif block ~= -2 then
    why[i] = { 'W', cut_block(ARGV[11 + i], block) }
  elseif not v and redis.call('EXISTS', LOCK) == 1 then -- the key is of another type
    why[i] = { 'B', redis.call('PTTL', LOCK), '' }
  elseif not v and IS_SHARED or v and string.sub(v, 1, 2) == 'S|' then
    beside = beside or {}
    beside[#beside + 1] = i
  elseif v then
    local left = redis.call('PTTL', LOCK)
    if IS_SHARED and string.sub(v, 1, 65) == TOKEN .. '|' and string.find(v, '^%x+|%d+|%d+|%d+|') then
      why[i] = { 'Y', 'e' }
    elseif string.sub(v, 1, 65) == TOKEN .. '|' and not IS_SHARED then
      local head, fence, claims, labels = string.match(v, '^(%d+|%d+|)(%d+)|([^|]*)(|.*)$', 66)
      if not head then
        why[i] = { 'B', left, '' } -- a foreign client has changed the value
      elseif string.find(claims, ATTEMPT .. ',', 1, true) then
        had[i] = { v, fence, left }
      elseif #claims >= 288 then
        why[i] = { 'X' } -- MAX_CLAIMS claims of 18 bytes each
      else
        had[i] = { TOKEN .. '|' .. head .. fence .. '|' .. claims .. ATTEMPT .. ',' .. labels, fence, left }
      end
    elseif string.byte(v, 65) == 124 and string.find(v, '^%x+|%d+|%d+|%d+|') then -- held by another lease
      if left < 0 or left > Q then -- no lease lasts longer than a quarantine: this clock went backwards
        left = Q
        redis.call('PEXPIRE', LOCK, left)
      end
      why[i] = { 'B', left, v }
    else
      why[i] = { 'B', left, '' } -- held by a foreign client
    end
  end
end
local function refusal(held_by) -- held_by: of members.lua, where there may be members
  local out = { 'N' }
  -- A token that has some of them goes on: who comes next may be waiting for it.
  for i, v in pairs(next(had) and {} or intended) do
    local left = redis.call('PTTL', 'redlockd:i:' .. ARGV[11 + i])
    why[i] = why[i] or held_by and held_by(KEYS[3 * i], 'redlockd:m:' .. ARGV[11 + i], v, left, 1) or { 'H', left, '', 1, '' }
  end
  for i = 1, count do
    if why[i] then out[#out + 1], out[#out + 2] = i, why[i] end
  end
  return #out > 1 and out
end
-- The fence of each, kept before any lease has it; and of the new ones its digits.
local function fences()
  local out, digits = { 'Y' }, {}
  for i = 1, count do
    local fence = had[i] and tonumber(had[i][2])
    if not fence then
      fence = math.max(SENT, begin_generation() + 1, last_fence(ARGV[11 + i]) + 1)
      keep_fence(ARGV[11 + i], fence)
      digits[i] = string.format('%.0f', fence)
    end
    out[2 * i], out[2 * i + 1] = fence, had[i] and 1 or 0
  end
  return out, digits
end
local index = {}
local function note(i)
  index[#index + 1], index[#index + 2] = NOW_MS + PX, ARGV[11 + i]
end
if not beside then
  local no = refusal()
  if no then return no end
  -- Nothing keeps the set out. First the fences, then the leases.
  expect_late(2 * GUARD + 1000000) -- as in acquire.lua
  local out, digits = fences()
  for i = 1, count do
    local k = 3 * i - 1
    if had[i] then
      redis.call('SET', KEYS[k + 1], had[i][1], 'PX', math.max(PX, had[i][3]))
    else
      redis.call('SET', KEYS[k + 1], TOKEN .. '|000000|' .. TTL .. '|' .. digits[i] .. '|' .. ATTEMPT .. ',|' .. LABELS, 'PX', PX)
      note(i)
    end
  end
  if #index > 0 then redis.call('ZADD', KEYS[2], unpack(index)) end
  return out
end
