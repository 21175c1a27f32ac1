local no = not fit and check_vote() or nil
if no then return no end
local LOCK, HASH, TOKEN = KEYS[2], KEYS[4], ARGV[5]
local ended, found = why_ended({ KEYS[3] })[1], redis.call('MGET', LOCK, 'redlockd:blocks')
local v = found[1]
if ended then return { 'D', ended } end
if found[2] then
  local block = redis.call('PTTL', 'redlockd:block:' .. ARGV[6])
  if block ~= -2 then return { 'W', block } end
end
if not v then return redis.call('EXISTS', LOCK) == 0 and { 'M' } or { 'O', 0 } end
if string.sub(v, 1, 2) == 'S|' then -- done before, by another request
  local of = member_of(HASH, TOKEN)
  if not of then return { 'O', 0 } end
  return of[3] == 's' and { 'G', of[2] - NOW_MS, record_of(of) } or { 'Y', of[3] }
end
local claims = string.sub(v, 1, 65) == TOKEN .. '|' and string.match(v, '^%d+|%d+|%d+|([^|]*)|', 66)
local left = redis.call('PTTL', LOCK)
if not claims or left < 0 then return { 'O', 0 } end
for claim in string.gmatch(claims, '[^,]+,') do
  if claim ~= 'p,' and not string.find(ARGV[7], claim, 1, true) then return { 'O', 0 } end
end
redis.call('DEL', HASH)
redis.call('SET', LOCK, 'S|s', 'PX', math.max(left, 1))
store(LOCK, HASH, {}, TOKEN, NOW_MS + left, 's', string.sub(v, 66), math.max(left, 1))
return { 'G', left, 'Ms|' .. v }
