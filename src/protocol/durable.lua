-- Durable processes (docs/views.md, "By its disk"). meta: durable (the run that is durable), trip (the last trip key), was (of a
-- process that loaded a durable one's data: that one's run|its last beat|since of this quarantine|from when on it may take that
-- one's place, empty: unknown). redlockd:trip:N, N = its end in units of TRIP ms: gone if this clock was ever past its end.
local TRIP, HORIZON, SLACK = 2000, 600000, 10000 -- ms
-- Whether this process is durable; and what it has of `was`, if that is of its present state.
local function inherits(RUN)
  local y = redis.call('HMGET', META, 'durable', 'st', 'since', 'was')
  local run, beat, since, ready = string.match(y[4] or '', '^(%x+)|(%d+)|(%d+)|(%d*)$')
  if y[2] ~= 'q' or since ~= y[3] then return y[1] == RUN end
  return y[1] == RUN, run, beat, tonumber(ready)
end
-- As it is replied.
local function inherited(RUN)
  local is_durable, run, beat, ready = inherits(RUN)
  return run and run .. '|' .. beat .. '|' .. (is_durable and ready and NOW >= ready and 1 or 0) or '', is_durable and 1 or 0
end
-- For a probe, with what the instance has just read: '1' Redis syncs each write before it replies, '0' it does not, '' not known.
local function watch_disk(RUN, policy, votes)
  local is_durable, run, beat, ready = inherits(RUN)
  local info = policy == '1' and redis.call('INFO', 'persistence') or ''
  local function has(...)
    for _, text in ipairs({ ... }) do
      if not string.find(info, text, 1, true) then return false end
    end
    return true
  end
  if policy ~= '' and not has('aof_enabled:1', 'aof_last_write_status:ok') then redis.call('HDEL', META, 'durable') end
  if not has('aof_enabled:1', 'aof_last_write_status:ok') or not votes and not run then return end
  if not is_durable then
    -- An append-only file that is being begun does not have what was there before.
    if not has('aof_rewrite_in_progress:0', 'aof_rewrite_scheduled:0', 'aof_last_bgrewrite_status:ok') then return end
    redis.call('HSET', META, 'durable', RUN)
  end
  local now, trip = math.floor(NOW / 1000), tonumber(redis.call('HMGET', META, 'trip')[1] or 0)
  local first, to = math.floor(now / TRIP) + 1, math.floor((now + math.min(Q, HORIZON)) / TRIP)
  if votes then
    for n = math.max(first, trip > to and 0 or trip + 1), to do
      redis.call('SET', 'redlockd:trip:' .. n, '', 'PX', n * TRIP - now)
    end
    if to ~= trip then redis.call('HSET', META, 'trip', to) end
  elseif not ready then
    local keys = {}
    for n = first, math.min(trip, first + HORIZON / TRIP) do keys[#keys + 1] = 'redlockd:trip:' .. n end
    local is_right = #keys > 0 and redis.call('EXISTS', unpack(keys)) == #keys and first * TRIP
    ready = is_right or now >= math.floor(beat / 1000) + Q + SLACK and now -- no lease that it knew is left
    if ready then
      redis.call('HSET', META, 'was', redis.call('HMGET', META, 'was')[1] .. string.format('%.0f', ready * 1000))
    end
  end
end
