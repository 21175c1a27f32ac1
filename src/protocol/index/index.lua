-- Puts leases into the index of held leases, which their acquires leave to the instance: most leases are over before. What is
-- not held any more stays out. Changes no lock and reads no marker. KEYS: 1 index
-- ARGV: 1 key head, 2 key tail, then for each: resource, token hash
-- The lock keys are built from the names: undeclared keys, which independent masters allow. Reply: {1}
local keys, put, t = {}, {}, redis.call('TIME')
local NOW_MS = t[1] * 1000 + math.floor(t[2] / 1000)
for at = 3, #ARGV, 2 do keys[#keys + 1] = lock_of(ARGV[at], ARGV[1] .. ARGV[at] .. ARGV[2]) end
local found = redis.call('MGET', unpack(keys))
for i = 1, #keys do
  local v = found[i] or ''
  if string.sub(v, 1, 65) == ARGV[2 * i + 2] .. '|' or string.sub(v, 1, 2) == 'S|' then -- or a downgrade has made it a member
    put[#put + 1], put[#put + 2] = NOW_MS + redis.call('PTTL', keys[i]), ARGV[2 * i + 1]
  end
end
if #put > 0 then redis.call('ZADD', KEYS[1], unpack(put)) end
return { 1 }
