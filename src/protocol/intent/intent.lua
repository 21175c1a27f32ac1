-- A caller that waits leaves its intent: this node admits nobody beside it who would keep it out. It decides who is next; nobody's
-- exclusion depends on it. Of two callers the one that has waited longer has it. value: token hash | since_us | mode
-- KEYS: 1 intent   ARGV: 1 token hash, 2 px_ms (0: withdraw), 3 since_us, 4 mode (e: exclusive, s, or p and the limit)
-- Replies: 1 (it stands, or is withdrawn) | 0 (another caller's stands)
local v = redis.call('MGET', KEYS[1])[1]
local other = v and string.sub(v, 1, 64) ~= ARGV[1] and string.sub(v, 1, 64)
if other and redis.call('PTTL', KEYS[1]) > tonumber(ARGV[2]) and ARGV[2] ~= '0' then other = nil end -- as in acquire.lua
if ARGV[2] == '0' then
  if v and not other then redis.call('DEL', KEYS[1]) end
  return { other and 0 or 1 }
end
if other then
  local theirs, own = tonumber(string.match(v, '^%x+|(%d+)|') or 0), tonumber(ARGV[3])
  if theirs < own or theirs == own and other < ARGV[1] then return { 0 } end
end
redis.call('SET', KEYS[1], ARGV[1] .. '|' .. ARGV[3] .. '|' .. ARGV[4], 'PX', ARGV[2])
redis.call('SET', 'redlockd:intents', '1', 'PX', ARGV[2]) -- whether any resource has one: all last as long
return { 1 }
