-- A caller that waits leaves its intent, under which this node admits no new member, or withdraws it. It decides who is next;
-- nobody's exclusion depends on it. KEYS: 1 intent   ARGV: 1 token hash, 2 px_ms (0: withdraw)
-- Replies: 1 (it stands, or is withdrawn) | 0 (another caller's stands)
local own = redis.call('MGET', KEYS[1])[1]
if own and own ~= ARGV[1] then return { 0 } end
if ARGV[2] == '0' then
  if own then redis.call('DEL', KEYS[1]) end
else
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
end
return { 1 }
