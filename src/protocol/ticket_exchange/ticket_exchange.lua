-- Who serves which tickets: the caller serves some for a while longer, asks for some, and reads which nobody serves. Reads no
-- marker: nothing here is a vote. KEYS: 1 index of tickets (sorted set, scored by when an instance that does not serve it
-- is to look at it: ms)
-- ARGV: 1 key prefix, 2 instance (16 characters), 3 serve_ms, 4 pause_ms for which one that is due is the caller's, 5 how many of
-- these at most (0: none is taken), 6 digits of a head, 7 digits of a time, 8 how many are served, then for each: id, when it was asked for
-- last (ms; digits of a time), first those that the caller serves, then others
-- Replies: {more (0 | 1), for each: whether the caller serves it (0 | 1), head ('' if there is none), asked; ids that are due}
local INDEX, PREFIX, ME, SERVE, PAUSE, COUNT = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local HEAD, ASKED, served = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
local t = redis.call('TIME')
local NOW = t[1] * 1000 + math.floor(t[2] / 1000)
local out, keys, n = { 0 }, {}, 1
for i = 9, #ARGV, 2 do keys[#keys + 1] = PREFIX .. ARGV[i] end
-- pcall: a full node must still show what it has.
for i, v in ipairs(#keys > 0 and redis.call('MGET', unpack(keys)) or {}) do
  local id, asked, mine = ARGV[7 + 2 * i], ARGV[8 + 2 * i], 0
  if not v or #v < HEAD + ASKED + #ME then
    redis.pcall('ZREM', INDEX, id)
    out[n + 1], out[n + 2], out[n + 3] = 0, '', ''
  else
    local known, server = string.sub(v, HEAD + 1, HEAD + ASKED), string.sub(v, HEAD + ASKED + 1, HEAD + ASKED + #ME)
    if asked > known then
      redis.pcall('SETRANGE', keys[i], HEAD, asked)
      known = asked
    end
    if i <= served then
      local due = server ~= ME and tonumber(redis.call('ZSCORE', INDEX, id) or 0) or 0
      if due <= NOW then
        mine = 1
        if server ~= ME then redis.pcall('SETRANGE', keys[i], HEAD + ASKED, ME) end
        redis.pcall('ZADD', INDEX, NOW + SERVE, id)
      end
    end
    out[n + 1], out[n + 2], out[n + 3] = mine, string.sub(v, 1, HEAD), known
  end
  n = n + 3
end
local found = redis.call('ZRANGEBYSCORE', INDEX, '-inf', NOW, 'LIMIT', 0, COUNT)
if #found > 0 and #found == COUNT then out[1] = 1 end
for i, id in ipairs(found) do
  if redis.call('EXISTS', PREFIX .. id) == 0 then
    redis.pcall('ZREM', INDEX, id)
  else
    redis.pcall('SETRANGE', PREFIX .. id, HEAD + ASKED, ME) -- it is the one that is to serve it
    redis.pcall('ZADD', INDEX, NOW + PAUSE, id)
    n = n + 1
    out[n] = id
  end
end
return out
