-- The node's own state: probe, init, quarantine, activate. KEYS: 1 meta, 2 index
-- ARGV: as in marker.lua, 5 operation (probe | init | quarantine | activate), 6 seed fence, 7 key head, 8 key tail, 9 sweep count
-- Replies: {code, number, hw, now_us, run, why, since_us, until_us}; code: A, K, C, Q, S, or N (init: has a marker already)
local operation, seed = ARGV[5], tonumber(ARGV[6])
local RUN = string.match(PASS, '^%x*')
local ev = string.match(redis.call('INFO', 'stats'), 'evicted_keys:(%d+)')
local x = redis.call('HMGET', META, 'run', 'ev')
local function answer(code, n)
  local y = redis.call('HMGET', META, 'why', 'since', 'until', 'hw')
  return { code, n, tonumber(y[4] or 0), NOW, RUN, y[1] or '', tonumber(y[2] or 0), tonumber(y[3] or 0) }
end
if operation == 'init' then -- only on a node that has never voted since it was blank
  local y = redis.call('HMGET', META, 'st', 'why')
  if x[1] and (y[1] ~= 'q' or y[2] ~= 'blank') then return answer('N', NOW) end
  if math.abs(NOW - SENT) > GUARD then return answer('K', NOW) end -- its fences would start at a wrong time
  local cfg, qms = string.match(PASS, '^%x*|(.*)|(%d+)$')
  hw = math.max(hw, SENT)
  redis.call('HSET', META, 'pass', PASS, 'seen', NOW, 'hw', hw, 'base', hw, 'per', 0, 'run', RUN, 'st', 'a',
    'cfg', cfg, 'qms', qms, 'until', 0, 'owed', 0, 'ev', ev, 'why', 'init', 'since', NOW)
  return answer('A', 0)
end
if operation == 'quarantine' then
  local no = judge('ordered')
  redis.call('HSET', META, 'ev', ev)
  return answer(no[1], no[2])
end
local no = not fit and judge() or nil
if not no or no[1] == 'Q' or no[1] == 'S' then
  if x[2] and x[2] ~= ev and x[1] == RUN then no = judge('evicted') end -- keys were evicted under memory pressure
  if x[2] ~= ev or not fit then redis.call('HSET', META, 'ev', ev) end
end
if operation == 'activate' and no and no[1] == 'S' then
  local y = redis.call('HMGET', META, 'base', 'cfg', 'qms')
  hw = math.max(hw, seed)
  redis.call('HSET', META, 'st', 'a', 'owed', 0, 'base', math.max(tonumber(y[1] or 0), hw), 'hw', hw, 'since', NOW,
    'pass', table.concat({ RUN, y[2], y[3] }, '|'))
  no = nil
end
-- Sweep: expired leases leave the index; extended ones get their new end. Not for another cluster, whose key template
-- may name other keys.
if no and no[1] == 'C' then return answer(no[1], no[2]) end
local late = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', math.floor(NOW / 1000), 'LIMIT', 0, ARGV[9])
for _, resource in ipairs(late) do
  local left = redis.call('PTTL', ARGV[7] .. resource .. ARGV[8])
  if left >= 0 then -- 0: the last millisecond, in which it may still be extended
    redis.call('ZADD', KEYS[2], math.floor(NOW / 1000) + left, resource)
  else
    redis.call('ZREM', KEYS[2], resource)
  end
end
if no then return answer(no[1], no[2]) end
return answer('A', 0)
