-- Releases and cancels that plain.lua does not decide, and the others of their batch. Keys and arguments are described there.
-- A resource with a block: the token, or its last claim, is taken out of the block too, and that counts as released.
-- A cancel leaves a tombstone also where it finds its attempt's claim: the acquire is sent again if the view changes.
-- Reply: for each, in order: 1 (released, no earlier tombstone), or a list: R released | M no such key | O another's,
--        then the reason in an earlier tombstone, or ''
-- A release that finds its lease counts as the first one, except after a revocation.
local K = KEYS
-- After a change of the key template: the names that this process gives to locks (names.lua), also where the sender does not know them yet.
-- For a quarantine after the change there is a redlockd:blocks.
local is_found = not found[1]
for i = 1, count do is_found = is_found and sub(found[i + 3] or '', 1, 65) == sub(KEYS[2 * i], 15, 78) .. '|' end
local names = not is_found and redis.call('MGET', 'redlockd:names')[1]
if names then
  local name, moving = string.match(names, '^(%S*) ?(.*)$')
  K = {}
  for i = 1, count do
    local resource = sub(KEYS[2 * i], 80, ARGV[2 * i - 1] == '' and -1 or -19)
    local moved = 'redlockd:moved:' .. resource
    K[2 * i - 1] = moving ~= '' and redis.call('EXISTS', moved) == 1 and moved or (string.gsub(name, '{resource}', resource))
    K[2 * i], locks[i] = KEYS[2 * i], K[2 * i - 1]
  end
  found = redis.call('MGET', 'redlockd:blocks', 'redlockd:notices', 'redlockd:revoked', unpack(locks))
end
local tombstones = {}
for i = 1, count do tombstones[i] = K[2 * i] end
local earlier = why_ended(tombstones)
local out, deleted, unlisted, notices, beside, longest, is_late = {}, {}, {}, {}, nil, 0, false
for i = 1, count do
  local v, code, last, ended = found[i + 3], 'M', false, false
  local LOCK, TOKEN, AT = K[2 * i - 1], sub(K[2 * i], 15, 78), ARGV[2 * i - 1]
  local RESOURCE = sub(K[2 * i], 80, AT == '' and -1 or -19)
  if not v then
    if redis.call('EXISTS', LOCK) == 1 then code = 'O' end -- of another type
  elseif string.sub(v, 1, 65) ~= TOKEN .. '|' then
    code = 'O'
    if string.byte(v) == 83 then -- S: members (release/member.lua)
      beside = beside or {}
      beside[#beside + 1] = i
    end
  elseif AT == '' then
    code, last = 'R', true
  else -- withdraw one attempt's claim; others may still hold
    local head, claims, tail = string.match(v, '^(%d+|%d+|%d+|)([^|]*)(|.*)$', 66)
    local a, b
    if head then a, b = string.find(claims, AT .. ',', 1, true) end
    code = a and 'R' or 'O'
    if a then
      local rest = string.sub(claims, 1, a - 1) .. string.sub(claims, b + 1)
      last = rest == ''
      if not last then redis.pcall('SET', LOCK, TOKEN .. '|' .. head .. rest .. tail, 'KEEPTTL') end
    end
  end
  if AT ~= '' then longest = math.max(longest, ARGV[2 * i]) else is_late = is_late or not last end
  if found[1] then
    local BLOCK, rest = 'redlockd:block:' .. RESOURCE, ''
    local ends, claims = string.match(redis.call('HMGET', BLOCK, TOKEN)[1] or '', '^(%d+)|(.*)$')
    if ends and AT ~= '' then
      local a, b = string.find(claims, AT .. ',', 1, true)
      rest = a and string.sub(claims, 1, a - 1) .. string.sub(claims, b + 1) or claims
    end
    if ends and (AT == '' or rest ~= claims) then
      ended = code == 'M' and rest == ''
      code = 'R'
      if rest ~= '' then
        redis.call('HSET', BLOCK, TOKEN, ends .. '|' .. rest)
      else
        redis.call('HDEL', BLOCK, TOKEN)
        local others, last_end = redis.call('HGETALL', BLOCK), 0
        for n = 2, #others, 2 do last_end = math.max(last_end, string.match(others[n], '^%d+')) end
        local left = last_end - math.floor(t[1] * 1000 + t[2] / 1000)
        if last_end > 0 then redis.call('PEXPIRE', BLOCK, math.max(left, 0)) end -- 0: the key is deleted
        ended = ended and left <= 0
      end
    end
  end
  if last then deleted[#deleted + 1], unlisted[#unlisted + 1] = LOCK, RESOURCE end
  if found[2] and (last or ended) then
    -- 'c': a cancelled attempt usually had no quorum; waiters must not wake each other by cancelling.
    notices[#notices + 1], notices[#notices + 2] = 'redlockd:freed:' .. RESOURCE, (AT == '' and 'r' or 'c') .. string.sub(TOKEN, 1, 8)
  end
  if AT == '' and code == 'R' and earlier[i] ~= 'revoked' then earlier[i] = false end
  out[i] = not earlier[i] and code == 'R' and 1 or { code, earlier[i] or '' }
end
if #deleted > 0 then redis.call('DEL', unpack(deleted)) end
if longest > 0 then have_keys(longest) end
if is_late then expect_late(60000000) end -- its first acquire may arrive later
for i = 1, count do
  -- The first reason stays, except that a release replaces a revocation.
  local done
  if earlier[i] and earlier[i] ~= 'revoked' then -- it has one
  elseif ARGV[2 * i - 1] == '' then
    done = redis.pcall('HSET', 'redlockd:ended', K[2 * i], ARGV[2 * i] .. '|' .. t[1] .. '|' .. t[2])
  else
    done = redis.pcall('SET', K[2 * i], 'cancelled', 'PX', ARGV[2 * i])
  end
  if type(done) == 'table' and done.err and not string.find(done.err, 'OOM', 1, true) then return done end -- a full node must still release
end
-- Last: if these are forbidden, the leases are deleted and tombstoned anyway.
if #deleted > 0 then redis.call('ZREM', 'redlockd:leases', unpack(unlisted)) end
-- pcall: a Redis user without the right to the channel can still release.
for n = 1, #notices, 2 do redis.pcall('PUBLISH', notices[n], notices[n + 1]) end
if not beside then return out end
local NOW_MS, Q = math.floor(NOW / 1000), nil
