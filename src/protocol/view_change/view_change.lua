-- Changes of the view on one process: promise, install, admit (docs/views.md, "The steps"). KEYS: 1 meta
-- ARGV: as in marker.lua, 5 operation (promise | install | admit), 6 the new view, 7 its record, 8 nonce|pages of the fill,
--       9 seed fence, 10 why ('' keeps it)
-- Replies: {1 = done, code, number, hw, run, record of the installed view, promised, admitted, run|beat|1 as in admin.lua}; code: A (it
--   votes, in whatever view), or that of the refusal
local operation, V, record, seed = ARGV[5], ARGV[6], ARGV[7], tonumber(ARGV[9])
local RUN = string.match(PASS, '^%x*')
-- The connection was made before this process became a replica and a master again.
local replid = string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)') or ''
if #RUN > 40 and string.sub(RUN, 41) ~= replid then
  PASS = string.sub(RUN, 1, 40) .. replid .. string.sub(PASS, #RUN + 1)
  RUN = string.match(PASS, '^%x*')
end
local no = check_vote()
local votes, waits = not no or no[1] == 'V', no and (no[1] == 'Q' or no[1] == 'S')
local x = redis.call('HMGET', META, 'view', 'promised', 'admitted', 'roster', 'fill', 'base', 'why', 'pending')
local view, promised, admitted, done = x[1] or NONE, x[2] or NONE, x[3] or NONE, 0
local CFG = string.match(PASS, '^%x*|(.*)|%x+|%d+$')
-- What the record names is this very process, since the view in which it was admitted last, or is to be.
local function is_named(since) return string.find(record, ' ' .. RUN .. ' ' .. since, 1, true) end
-- It voted in the list that the record changes, or was admitted since.
local function was_named()
  local since = string.match(record, '\n=before %S+ ' .. RUN .. ' (%x+)')
  return since and admitted >= since
end
-- Its leases have other names than a view has in which it would vote without a fill. Cannot be, by (L): such a view follows no chosen one.
local function is_named_otherwise()
  local names, now = redis.call('MGET', 'redlockd:names')[1], string.match(record, '\n=settings %d+ %d+ %d+ (%S+)')
  return names and not string.find(record, '\n=old ', 1, true) and names ~= (now or string.match(names, '^%S+'))
end
if operation == 'promise' then
  if (votes or waits) and V > view and V > promised then
    redis.call('HSET', META, 'promised', V)
    promised, done = V, 1
  end
elseif operation == 'install' then
  local is_durable, last, _, ready = inherits(RUN)
  if votes and V == view then
    done = 1
  elseif waits and last and is_durable and ready and NOW >= ready and V > view and V >= promised and is_named(admitted)
    and not string.find(record, '\n=old ', 1, true) then -- with the data and the last admission of the process in whose place it is named
    redis.call('HSET', META, 'view', V, 'promised', V, 'roster', record, 'proto', PROTO, 'st', 'a', 'owed', 0, 'why', 'by-disk',
      'since', NOW, 'pass', RUN .. '|' .. CFG .. '|' .. V)
    redis.call('HDEL', META, 'fill', 'pending')
    view, promised, x[4], done, votes = V, V, record, 1, true
  elseif votes and V > view and (not is_named(admitted) and not was_named() or is_named_otherwise()) then -- it is to be filled, and votes in no lower view until then
    no, votes = check_vote('displaced'), false
  elseif votes and V > view and V >= promised then
    redis.call('HSET', META, 'view', V, 'promised', V, 'roster', record, 'proto', PROTO, 'pass', RUN .. '|' .. CFG .. '|' .. V)
    redis.call('HDEL', META, 'pending')
    if string.find(record, '\n=old ', 1, true) then -- the list changes: nobody votes in it who was not filled for it
      redis.call('HSET', META, 'pass', '', 'pending', V)
      redis.call('HDEL', META, 'fill')
      local was, now = string.match(record, '\n=was %d+ %d+ %d+ (%S+)'), string.match(record, '\n=settings %d+ %d+ %d+ (%S+)')
      if was and was ~= now then redis.call('SET', 'redlockd:names', was, 'NX') end -- renamed next (rename.lua)
      if was and redis.call('PTTL', 'redlockd:blocks') < Q then redis.call('SET', 'redlockd:blocks', '1', 'PX', Q) end
    end
    view, promised, x[4], done = V, V, record, 1
  end
elseif votes and V == admitted then
  done = 1
elseif (waits and V > view or votes and x[8] == V) and V >= promised and is_named(V)
  and x[5] == V .. '|' .. ARGV[8] .. '|' .. string.match(ARGV[8], '%d+$') then
  hw = math.max(hw, seed)
  redis.call('HSET', META, 'view', V, 'promised', V, 'admitted', V, 'roster', record, 'proto', PROTO, 'cfg', CFG, 'st', 'a',
    'owed', 0, 'base', math.max(tonumber(x[6] or 0), hw), 'hw', hw, 'since', NOW, 'why', ARGV[10] ~= '' and ARGV[10] or x[7],
    'pass', RUN .. '|' .. CFG .. '|' .. V)
  redis.call('HDEL', META, 'fill', 'pending', 'trip')
  view, promised, admitted, x[4], done, votes = V, V, V, record, 1, true
end
return { done, votes and 'A' or no[1], votes and 0 or no[2], hw, RUN, x[4] or NONE, promised, admitted, (inherited(RUN)) }
