-- One ticket on a node that votes. Its state only rises: heads are compared as texts, of digits of one length, so that what
-- several instances write comes together in any order. KEYS: 1 meta, 2 ticket, 3 index of tickets (sorted set, scored by when
-- an instance that does not serve it is to look at it: ms)
-- ARGV: as in marker.lua, 5 what ('read' | 'raise' only where it exists | 'put' also where it does not), 6 id, 7 head, 8 stamp
-- (when it was asked for last, and who serves it), 9 body, 10 ttl_ms, 11 due_ms ('' = leaves the index)
-- Replies: T value ('' if there is none) | K C P Q S V
local no = not fit and check_vote() or nil
if no then return no end
local HEAD, STAMP = #ARGV[7], #ARGV[8]
local v = redis.call('MGET', KEYS[2])[1] or ''
if #v < HEAD + STAMP then v = '' end
if ARGV[5] == 'read' or v == '' and ARGV[5] == 'raise' then return { 'T', v } end
if v ~= '' and string.sub(v, 1, HEAD) >= ARGV[7] then return { 'T', v } end
v = v == '' and ARGV[7] .. ARGV[8] .. ARGV[9] or ARGV[7] .. string.sub(v, HEAD + 1)
redis.call('SET', KEYS[2], v, 'PX', ARGV[10])
if ARGV[11] == '' then
  redis.call('ZREM', KEYS[3], ARGV[6])
else
  redis.call('ZADD', KEYS[3], math.floor(NOW / 1000) + ARGV[11], ARGV[6])
end
return { 'T', v }
