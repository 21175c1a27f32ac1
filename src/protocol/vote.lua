-- Whether this node may vote: behind marker.lua, or behind plain.lua. Needs META, PASS, GUARD, SENT, NOW and m as marker.lua has them.
local PROTO, NONE = 4, '00000000000000000000000000000000'
if string.byte(PASS) == 124 then -- which process this is: a failover to a replica and back changes the second part alone
  PASS = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
    .. (string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)') or '') .. PASS
end
local hw, Q, cut = tonumber(m[3] or 0), tonumber(m[7] or 0), m[1] and #m[1] or 0
-- The marker is valid, covers the sender's longest lease, and this clock has not gone back.
local sound = m[6] and string.sub(PASS, 1, cut) == m[1] and string.byte(PASS, cut + 1) == 124
  and (string.sub(PASS, cut + 2) == m[6] or (tonumber(string.sub(PASS, cut + 2)) or 1e15) <= tonumber(m[6])) and NOW >= m[2] - GUARD
local fit = sound and NOW - SENT <= GUARD and SENT - NOW <= GUARD
-- The full check. Returns nil if this node may vote, else the refusal to reply; with an order, the new quarantine. V: it votes
-- in another view than the sender's, whose record it replies if that is the higher one, or is to be filled for this one.
local function check_vote(order)
  local RUN, CFG, VIEW, ASK = string.match(PASS, '^(%x*)|(.*)|(%x+)|(%d+)$')
  ASK = tonumber(ASK)
  local x = redis.call('HMGET', META, 'run', 'st', 'cfg', 'until', 'owed', 'proto', 'ask', 'qms', 'view', 'roster',
    'pending', 'durable', 'beat')
  local run, st, cfg, till, owed, proto = x[1], x[2], x[3], tonumber(x[4] or 0), tonumber(x[5] or 0), tonumber(x[6] or 1)
  if proto > PROTO then return { 'P', proto } end -- of a later version, whose rules this script does not know: changes nothing
  local seen, ask = tonumber(m[2] or 0), tonumber(x[7] or 0)
  Q = tonumber(x[8] or 0)
  local ours = not cfg or cfg == '' or cfg == CFG
  if run and proto < 4 and (proto < 2 and '4.' .. cfg or '4' .. string.sub(cfg, 2)) == CFG then
    -- Of an earlier version, with the same keys and settings: taken over. Its fences had keys of their own.
    if proto < 2 and run == string.sub(RUN, 1, 40) then run = RUN end
    cfg, ours, proto = CFG, true, proto < 2 and 2 or PROTO -- of version 1, it votes for nobody until its first view
    m[4] = math.max(tonumber(m[4] or 0), hw)
    redis.call('HSET', META, 'cfg', cfg, 'proto', proto, 'run', run, 'pass', '', 'base', string.format('%.0f', m[4]))
    if proto == PROTO and st == 'a' and x[9] then redis.call('HSET', META, 'pass', run .. '|' .. cfg .. '|' .. x[9]) end
  end
  local lost = order or not run and 'blank' or NOW < seen - GUARD and 'clock' or nil
  if run and run ~= RUN and not order then
    lost = #RUN > 40 and string.sub(run, 1, 40) == string.sub(RUN, 1, 40) and 'failover' or 'restart'
  end
  if not order and math.abs(NOW - SENT) > GUARD then -- a late request, or one of the two clocks is off
    if not lost and NOW > seen then redis.call('HSET', META, 'seen', NOW) end
    return { 'K', NOW }
  end
  local longest = ours and math.max(ASK, Q) or Q -- another cluster's leases are not here: it lengthens nothing
  if lost then
    -- The sender may be of another cluster: a node keeps its own, and one that was blank has none yet.
    cfg = cfg or ''
    -- Another clock may be right and return: that of the quarantine that this one replaces, or the sender's.
    if st == 'q' then owed = math.max(owed, till) end
    -- Loaded data of a durable process that voted: see durable.lua.
    local was = lost == 'restart' and st == 'a' and not x[11] and x[12] == run and x[13]
    if math.abs(NOW - SENT) > GUARD then owed = math.max(owed, SENT + longest * 1000) end
    st, till = 'q', NOW + longest * 1000
    -- ev may be of another process: the next probe stores it again. A fill gives no vote to a process that lost it since.
    redis.call('HDEL', META, 'ev', 'fill', 'pending')
    redis.call('HSET', META, 'pass', '', 'seen', NOW, 'run', RUN, 'st', st, 'cfg', cfg, 'proto', ours and PROTO or proto,
      'until', till, 'owed', owed, 'why', lost, 'since', NOW, 'was', was and run .. '|' .. was .. '|' .. string.format('%.0f', NOW) .. '|' or '')
  elseif longest > Q then
    till = till + (longest - Q) * 1000
    redis.call('HSET', META, 'until', till)
  end
  if ours and (ASK > ask or not x[7]) then
    redis.call('HSET', META, 'ask', math.max(ASK, ask), 'qms', longest)
    -- A period lasts at least as long as the leases that it covers.
    if longest > Q or not x[7] then redis.call('HSET', META, 'roll', NOW + longest * 1000) end
  end
  Q = longest
  if order then return { 'Q', Q } end
  if cfg ~= '' and cfg ~= CFG then return { 'C', cfg } end
  if st ~= 'a' then
    if NOW < till then return { 'Q', math.ceil((till - NOW) / 1000) } end
    if NOW < owed and NOW >= owed - Q * 1000 then return { 'Q', math.ceil((owed - NOW) / 1000) } end
    return { 'S', hw } -- quarantine served: it needs the other nodes' highest fence
  end
  local view = x[9] or NONE
  if view ~= VIEW or x[11] then return { 'V', view > VIEW and x[10] or view } end
  return nil
end
