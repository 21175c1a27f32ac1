-- The node's own state: probe, init, quarantine. KEYS: 1 meta, 2 index
-- ARGV: as in marker.lua, 5 operation (probe | init | quarantine), 6 record (init: of the sender's view), 7 key head, 8 key
--       tail, 9 sweep count, 10 instance, 11 '1' (a probe: it is a witness), 12 what it knows of the disk (durable.lua), then
--       for each node that it sees alive: name, run
-- Replies: {code, number, hw, now_us, run, why, since_us, until_us, record, promised, admitted, run|beat|1 (durable.lua; 1: it may take
--   that one's place now) or '', 1 (durable), name, run, ...}, the last for
--   each process that another instance saw alive within 3 s; code: A, K, C, P, Q, S, V, or N (init: has a marker already), W (quarantine: refused, as another
--   instance's time was right here within 2.5 s)
local operation, instance, ASK = ARGV[5], ARGV[10], tonumber(string.match(PASS, '%d+$'))
local ALIVE, WITNESS, FORGET = 3000000, 2500000, 60000000 -- us
local RUN = string.match(PASS, '^%x*')
-- The connection was made before this process became a replica and a master again: what it knows may be from elsewhere.
local replid = string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)') or ''
if #RUN > 40 and string.sub(RUN, 41) ~= replid then
  PASS, fit = string.sub(RUN, 1, 40) .. replid .. string.sub(PASS, #RUN + 1), false
  RUN = string.match(PASS, '^%x*')
end
local ev = string.match(redis.call('INFO', 'stats'), 'evicted_keys:(%d+)')
local x = redis.call('HMGET', META, 'run', 'ev')
local all, notes = redis.call('HGETALL', META), {}
for i = 1, #all, 2 do notes[all[i]] = all[i + 1] end
local function answer(code, n)
  local y = redis.call('HMGET', META, 'why', 'since', 'until', 'hw', 'roster', 'promised', 'admitted')
  local out = { code, n, tonumber(y[4] or 0), NOW, RUN, y[1] or '', tonumber(y[2] or 0), tonumber(y[3] or 0), y[5] or NONE,
    y[6] or NONE, y[7] or NONE }
  out[12], out[13] = inherited(RUN)
  local listed = {}
  for i = 1, #all, 2 do
    local at, sees = string.match(all[i + 1], '^(%d+) (.*)$')
    if string.sub(all[i], 1, 5) == 'sees:' and all[i] ~= 'sees:' .. instance and at and math.abs(NOW - at) <= ALIVE then
      for name, run in string.gmatch(sees, '(%S+) (%S+)') do
        local pair = name .. ' ' .. run
        if not listed[pair] then listed[pair], out[#out + 1], out[#out + 2] = true, name, run end
      end
    end
  end
  return out
end
if operation == 'init' then -- only on a node that has never voted since it was blank
  local y = redis.call('HMGET', META, 'st', 'why', 'proto', 'ask')
  if tonumber(y[3] or 0) > PROTO then return answer('P', tonumber(y[3])) end
  if x[1] and (y[1] ~= 'q' or y[2] ~= 'blank') then return answer('N', NOW) end
  if math.abs(NOW - SENT) > GUARD then return answer('K', NOW) end -- its fences would start at a wrong time
  local cfg, view = string.match(PASS, '^%x*|(.*)|(%x+)|%d+$')
  local longest = math.max(ASK, Q)
  hw = math.max(hw, SENT)
  redis.call('HSET', META, 'view', view, 'promised', view, 'admitted', view, 'roster', ARGV[6])
  redis.call('HSET', META, 'pass', RUN .. '|' .. cfg .. '|' .. view, 'seen', NOW, 'hw', hw, 'base', hw, 'gen', 0, 'run', RUN,
    'st', 'a', 'cfg', cfg, 'proto', PROTO, 'ask', math.max(ASK, tonumber(y[4] or 0)), 'qms', longest, 'roll', NOW + longest * 1000,
    'until', 0, 'owed', 0, 'ev', ev, 'why', 'init', 'since', NOW)
  return answer('A', 0)
end
if operation == 'quarantine' then
  for field, at in pairs(notes) do -- whoever is alone in its opinion of the time is wrong
    local age = string.sub(field, 1, 4) == 'fit:' and field ~= 'fit:' .. instance and NOW - at
    if age and age >= 0 and age <= WITNESS then return answer('W', 0) end
  end
  local no = check_vote('ordered')
  if no[1] == 'Q' then redis.call('HSET', META, 'ev', ev) end
  return answer(no[1], no[2])
end
local no, other = not fit and check_vote() or nil, nil
if no and no[1] == 'V' then no, other = nil, no end -- it votes, in another view
if not no or no[1] == 'Q' or no[1] == 'S' then
  if x[2] and x[2] ~= ev and x[1] == RUN then -- keys were evicted under memory pressure, or the statistics were reset
    local memory = tonumber(ev) < tonumber(x[2]) and redis.call('INFO', 'memory') or nil
    local never = memory and (string.find(memory, 'maxmemory:0\r', 1, true) or string.find(memory, 'maxmemory_policy:noeviction', 1, true))
    if not never then no, other = check_vote('evicted'), nil end
  end
  if x[2] ~= ev or not fit then redis.call('HSET', META, 'ev', ev) end
end
-- Another cluster's template may name other keys, and a script of another version changes nothing.
if no and (no[1] == 'C' or no[1] == 'P') then return answer(no[1], no[2]) end
local period = not no and redis.call('HMGET', META, 'roll', 'ask')
if period and NOW >= tonumber(period[1] or 0) then
  -- All leases of the period before are over: only what was asked for in the one that ends still counts.
  local longest = math.max(ASK, tonumber(period[2]))
  redis.call('HSET', META, 'ask', ASK, 'qms', longest, 'roll', NOW + longest * 1000)
end
if operation == 'probe' and not no then begin_generation() end -- else what a burst left stays until the next acquire
if operation == 'probe' and not (no and no[1] == 'K') then
  for field, at in pairs(notes) do
    local kind = string.match(field, '^(%l+):')
    local of = kind and (kind == 'fit' or kind == 'sees') and string.match(at, '^%d+')
    if of and math.abs(NOW - of) > FORGET then redis.call('HDEL', META, field) end
  end
  local left = { 'beat', NOW } -- a node that cannot write has no vote to give: this fails where it is full
  local sees = string.format('%.0f ', NOW) .. table.concat(ARGV, ' ', 13)
  if ARGV[11] == '1' then left[3], left[4] = 'fit:' .. instance, NOW end
  if instance ~= '' then left[#left + 1], left[#left + 2] = 'sees:' .. instance, sees end -- in place of its last one
  local turned = tonumber(notes.turned or 0)
  if NOW - turned >= 60000000 or NOW < turned then -- TOKEN_TOMBSTONE: what is in redlockd:ended:old is older (ended.lua)
    if NOW >= turned then -- otherwise this clock has gone back, and they stay for as long again
      local done = redis.pcall('UNLINK', 'redlockd:ended:old')
      if type(done) == 'table' then redis.call('DEL', 'redlockd:ended:old') end -- a user without the right to it
      if redis.call('EXISTS', 'redlockd:ended') == 1 then redis.call('RENAME', 'redlockd:ended', 'redlockd:ended:old') end
    end
    left[#left + 1], left[#left + 2] = 'turned', NOW
  end
  redis.call('HSET', META, unpack(left))
  watch_disk(RUN, ARGV[12], not no)
end
-- Sweep: expired leases leave the index; extended ones get their new end.
local late = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', math.floor(NOW / 1000), 'LIMIT', 0, ARGV[9])
for _, resource in ipairs(late) do
  local left = redis.call('PTTL', lock_of(resource, ARGV[7] .. resource .. ARGV[8]))
  if left >= 0 then -- 0: the last millisecond, in which it may still be extended
    redis.call('ZADD', KEYS[2], math.floor(NOW / 1000) + left, resource)
  else
    redis.call('ZREM', KEYS[2], resource)
  end
end
no = no or other
if no then return answer(no[1], no[2]) end
return answer('A', 0)
