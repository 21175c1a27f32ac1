local over_of = {} -- of each resource, the tokens whose time is over
for _, i in ipairs(beside) do
  local LOCK, RESOURCE, v, own = KEYS[3 * i], ARGV[11 + i], found[3 * i], nil
  local HASH = 'redlockd:m:' .. RESOURCE
  local living, _, _, over = members_of(HASH)
  if not v then -- somebody deleted the lock's key
    if #living + #over > 0 then redis.call('DEL', HASH) end
    living, over = {}, {}
  end
  for _, of in ipairs(living) do
    if of[1] == TOKEN then own = of end
  end
  over_of[i] = over
  if v and #living == 0 then
    why[i] = { 'B', redis.call('PTTL', LOCK), '' } -- a foreign client's value
  elseif own and (own[3] ~= 's' or not IS_SHARED) then
    why[i] = { 'Y', own[3] }
  elseif own then -- the same token again: the replay joins the lease
    local head, fence, claims, labels = string.match(own[4], '^(%d+|%d+|)(%d+)|([^|]*)(|.*)$')
    local known = string.find(claims, ATTEMPT .. ',', 1, true)
    if not known and #claims >= 288 then
      why[i] = { 'X' } -- MAX_CLAIMS claims of 18 bytes each
    else
      if not known then claims = claims .. ATTEMPT .. ',' end
      had[i] = { head .. fence .. '|' .. claims .. labels, fence, math.max(own[2], NOW_MS + PX) }
    end
  elseif v and (v ~= 'S|s' or not IS_SHARED) then
    why[i] = held_by(LOCK, HASH, v, redis.call('PTTL', LOCK), 0)
  elseif #living >= tonumber(ARGV[11]) then
    why[i] = held_by(LOCK, HASH, v, nil, 0)
  end
end
local no = refusal(held_by)
if no then return no end
-- Only a shared set comes here: members keep an exclusive one out.
local out, digits = fences()
for i = 1, count do
  local k, RESOURCE = 3 * i - 1, ARGV[11 + i]
  local LOCK, HASH = KEYS[k + 1], 'redlockd:m:' .. RESOURCE
  if had[i] then
    store(LOCK, HASH, over_of[i], TOKEN, had[i][3], 's', had[i][1], PX)
  else
    if not found[k + 1] then redis.call('SET', LOCK, 'S|s', 'PX', PX) end
    store(LOCK, HASH, over_of[i], TOKEN, NOW_MS + PX, 's', '000000|' .. TTL .. '|' .. digits[i] .. '|' .. ATTEMPT .. ',|' .. LABELS, PX)
    if own_intent[i] then redis.call('DEL', 'redlockd:i:' .. RESOURCE) end
    note(i)
  end
end
if #index > 0 then redis.call('ZADD', KEYS[2], unpack(index)) end
return out
