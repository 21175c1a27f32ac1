-- Which kept leases are due: the index of kept leases is checked at the time at which half of a lease's TTL has passed, and
-- only then. Reads no marker and changes no lock: nothing here is a vote. KEYS: 1 index of kept leases (sorted set, scored by
-- when each is checked next: ms)
-- ARGV: 1 lock_delay_ms, 2 how many to check at most, 3 pause_ms until one that is due is checked again, 4 key head, 5 key
-- tail, 6... resources to be indexed
-- The lock keys are built from the members: undeclared keys, which independent masters allow.
-- Replies: {indexed (0 | 1), more (0 | 1), resource, pttl, value, ...}
local INDEX, DELAY, COUNT, PAUSE, head, tail = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4], ARGV[5]
local t = redis.call('TIME')
local NOW = t[1] * 1000 + math.floor(t[2] / 1000)
local out, put = { 1, 0 }, {}
for i = 6, #ARGV do put[#put + 1], put[#put + 2] = NOW, ARGV[i] end
local function write(command, words) -- pcall: a full node must still show what it has.
  if #words == 0 then return true end
  local reply = redis.pcall(command, INDEX, unpack(words))
  return type(reply) ~= 'table' or not reply.err
end
if not write('ZADD', put) then out[1] = 0 end
local found = redis.call('ZRANGEBYSCORE', INDEX, '-inf', NOW, 'LIMIT', 0, COUNT)
if #found == 0 then return out end
if #found == COUNT then out[2] = 1 end
local keys, gone = {}, {}
put = {}
for i, resource in ipairs(found) do keys[i] = lock_of(resource, head .. resource .. tail) end
for i, v in ipairs(redis.call('MGET', unpack(keys))) do
  local ttl = v and string.match(v, '^%x+|%d+|(%d+)|%d+|')
  if v and string.sub(v, 1, 2) == 'S|' then -- members (members.lua): those that are kept
    local all, due = redis.call('HGETALL', 'redlockd:m:' .. found[i]), nil
    for n = 1, #all, 2 do
      local ends, mode, rest = string.match(all[n + 1], '^(%d+)|([^|]*)|(.*)$')
      local left = (tonumber(ends) or 0) - NOW
      local span = left >= 0 and string.find(rest, '"k":', 1, true) and string.match(rest, '^%d+|(%d+)|')
      if span then
        local later = math.floor(left - DELAY - span / 2)
        if later <= 0 and #out < 2 + 3 * COUNT then
          out[#out + 1], out[#out + 2], out[#out + 3] = found[i], left, 'M' .. mode .. '|' .. all[n] .. '|' .. rest
        end
        due = math.min(due or later, later)
      end
    end
    put[#put + 1], put[#put + 2] = NOW + (due and due > 0 and due or PAUSE), found[i]
  elseif not ttl then
    gone[#gone + 1] = found[i]
  elseif #out < 2 + 3 * COUNT then
    local left = redis.call('PTTL', keys[i])
    local due = math.floor(left - DELAY - ttl / 2)
    if due <= 0 then
      local n = #out
      out[n + 1], out[n + 2], out[n + 3] = found[i], left, v
      due = PAUSE
    end
    put[#put + 1], put[#put + 2] = NOW + due, found[i]
  end
end
write('ZREM', gone)
write('ZADD', put)
return out
