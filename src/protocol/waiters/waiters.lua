-- Who waits at which instance: publishes the caller's entry, and returns what others have published since its last call.
-- Reads no marker and no lock: nothing here is a vote. KEYS: 1 index of the instances (sorted set, scored by when each
-- published last: us), 2 the caller's entry
-- ARGV: 1 instance, 2 entry ('' = publishes nothing), 3 ttl_ms, 4 cursor (0 at first), 5 entries per page, 6 key prefix
-- The keys of the others' entries are built from the members: undeclared keys, which independent masters allow.
-- Replies: {published (0 | 1), next cursor, more (0 | 1), instance, pttl, entry, ...}
local INDEX, ME, TTL, since, PAGE = KEYS[1], ARGV[1], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local t = redis.call('TIME')
local NOW = t[1] * 1000000 + t[2]
if NOW < since then since = 0 end -- this clock went back
local out = { 0, since, 0 }
local function done(reply) return type(reply) ~= 'table' or not reply.err end
-- pcall: a full node must still show what it has.
if ARGV[2] ~= '' and done(redis.pcall('SET', KEYS[2], ARGV[2], 'PX', TTL)) and done(redis.pcall('ZADD', INDEX, NOW, ME)) then
  out[1] = 1
  redis.call('PEXPIRE', INDEX, TTL)
  local gone = redis.call('ZRANGEBYSCORE', INDEX, '-inf', NOW - TTL * 1000, 'LIMIT', 0, PAGE)
  if #gone > 0 then redis.call('ZREM', INDEX, unpack(gone)) end
end
local from = '(' .. string.format('%.0f', since)
local found = redis.call('ZRANGEBYSCORE', INDEX, from, '+inf', 'WITHSCORES', 'LIMIT', 0, PAGE + 1)
local count, keys, names = math.min(#found / 2, PAGE), {}, {}
if #found / 2 > PAGE then out[3] = 1 end
for i = 1, count do
  out[2] = tonumber(found[2 * i])
  if found[2 * i - 1] ~= ME then
    names[#names + 1], keys[#keys + 1] = found[2 * i - 1], ARGV[6] .. found[2 * i - 1]
  end
end
if #keys == 0 then return out end
for i, entry in ipairs(redis.call('MGET', unpack(keys))) do
  if entry then
    local n = #out
    out[n + 1], out[n + 2], out[n + 3] = names[i], redis.call('PTTL', keys[i]), entry
  end
end
return out
