-- One page of the index of held leases. KEYS: 1 index   ARGV: 1 cursor, 2 count, 3 key head, 4 key tail
-- The lock keys are made here from the members: undeclared keys, which independent masters allow.
-- Replies: {next cursor ('0' = end), resource, pttl, value, ...}
local scan = redis.call('ZSCAN', KEYS[1], ARGV[1], 'COUNT', ARGV[2])
local out = { scan[1] }
for i = 1, #scan[2], 2 do
  local key = ARGV[3] .. scan[2][i] .. ARGV[4]
  local v = redis.call('MGET', key)[1]
  if v and string.byte(v, 65) == 124 then
    out[#out + 1], out[#out + 2], out[#out + 3] = scan[2][i], redis.call('PTTL', key), v
  end
end
return out
