-- Extend, edit labels, write a fence back. Never creates a lease, never revives one, never shortens one.
-- KEYS: 1 meta, 2 lock, 3 block, 4 token tombstone
-- ARGV: as in marker.lua, 5 token hash, 6 ttl_ms (0 = the lease's own), 7 lock_delay_ms, 8 fence (0 = any),
--       9 '1' counts a renewal, '2' keeps the labels of a lease that is kept already, 10 labels ('' = keep)
-- Of a member (update/member.lua): a renewal takes the lease with this fence only; otherwise a quorum has given it, and it
-- takes the place of the one that this node gave.
-- Replies: G value pttl_before | M | O fence | D reason | F | W left (the resource has a block) | K C P Q S
local no = not fit and check_vote() or nil
-- A quarantined node, or one in another view, still extends, but does not vote.
if no and no[1] ~= 'Q' and no[1] ~= 'S' and no[1] ~= 'V' then return no end
local names = no and redis.call('MGET', 'redlockd:names')[1]
if names and string.gsub(names, '{resource}', string.sub(KEYS[3], 16)) ~= KEYS[2] then return no end -- its own key has another name
local LOCK, TOKEN, want = KEYS[2], ARGV[5], tonumber(ARGV[8])
-- The labels to be written, if any. A kept lease has a number "k": all that people write is a text.
local function edit_of(labels)
  return ARGV[10] ~= '' and not (ARGV[9] == '2' and string.find(labels, '"k":%d')) and ARGV[10]
end
local r, ended = redis.call('MGET', LOCK, KEYS[4], 'redlockd:blocks'), nil
if string.sub(r[1] or '', 1, 65) == TOKEN .. '|' then ended = r[2] else ended = why_ended({ KEYS[4] })[1] end -- no release leaves the lease
if ended then return no or { 'D', ended } end -- released, forced, or revoked: no further renewals
if r[3] then -- a resource with a block is updated as in quarantine: without a vote
  local left = redis.call('PTTL', KEYS[3])
  if left ~= -2 then
    no = no or { 'W', left }
    if redis.call('HMGET', KEYS[3], TOKEN)[1] then return no end -- this lease's: its key must not outlast the block, and vote again
  end
end
local v = r[1]
if not v or string.byte(v) ~= 83 then -- not S: no members
  if not v then return no or redis.call('EXISTS', LOCK) == 0 and { 'M' } or { 'O', 0 } end
  if string.sub(v, 1, 65) ~= TOKEN .. '|' then return no or { 'O', 0 } end
  local renewals, ttl, had, claims, labels = string.match(v, '^(%d+)|(%d+)|(%d+)|([^|]*)|(.*)$', 66)
  if not ttl then return redis.error_reply('ERR the lock\'s value begins with this token but is no lease') end
  local fence = tonumber(had)
  if want > 0 and fence > want then return no or { 'O', fence } end -- this token's next lease
  if want > math.max(NOW, hw) + GUARD then return { 'F' } end -- a fence too far ahead would spoil the counter
  local px = (ARGV[6] == '0' and ttl or ARGV[6]) + ARGV[7]
  local left = redis.call('PTTL', LOCK)
  -- Also where the end stays: once a script has written, a full node takes the rest, and the claim below is not lost.
  redis.call('PEXPIRE', LOCK, math.max(px, left))
  if ARGV[9] == '1' then renewals = string.format('%06d', math.min(renewals + 1, 999999)) end
  local edit = edit_of(labels)
  local edits = want > fence or edit
  -- An extend adds a claim of its own: no late cancel of an attempt may end what it confirmed.
  local joins = ARGV[9] == '1' and not string.find(claims, 'p,', 1, true)
  if edits or joins then
    if want > fence then fence, had = want, ARGV[8] end
    labels = edit or labels
    if joins then claims = claims .. 'p,' end
    v = table.concat({ TOKEN, renewals, ttl, had, claims, labels }, '|')
    local call = edits and redis.call or redis.pcall -- pcall: as below
    call('SET', LOCK, v, 'KEEPTTL')
    if edits then keep_fence(string.sub(KEYS[3], 16), fence) end
  elseif ARGV[9] == '1' then
    v = TOKEN .. '|' .. renewals .. string.sub(v, 72)
    redis.pcall('SETRANGE', LOCK, 65, renewals) -- pcall: a full node still extends, but does not count it
  end
  return no or { 'G', v, left }
end
local NOW_MS = math.floor(NOW / 1000)
