local HASH = 'redlockd:m:' .. string.sub(KEYS[3], 16)
local mine = member_of(HASH, TOKEN)
if not mine or string.sub(v, 1, 2) ~= 'S|' then return no or { 'O', 0 } end
local renewals, ttl, fence, claims, labels = string.match(mine[4], '^(%d+)|(%d+)|(%d+)|([^|]*)|(.*)$')
if not ttl then return redis.error_reply('ERR a member of this resource is no lease') end
if want > 0 and ARGV[9] == '1' and tonumber(fence) ~= want then return no or { 'O', tonumber(fence) } end
if want > math.max(NOW, hw) + GUARD then return { 'F' } end
local px = (ARGV[6] == '0' and ttl or ARGV[6]) + ARGV[7]
local ends = math.max(mine[2], NOW_MS + px)
redis.call('PEXPIRE', LOCK, math.max(px, redis.call('PTTL', LOCK))) -- first: as above, on a full node
if ARGV[9] == '1' then
  renewals = string.format('%06d', math.min(renewals + 1, 999999))
  if not string.find(claims, 'p,', 1, true) then claims = claims .. 'p,' end
end
if want > 0 and tonumber(fence) ~= want then
  fence = ARGV[8]
  keep_fence(string.sub(KEYS[3], 16), want)
end
labels = edit_of(labels) or labels
local rest = table.concat({ renewals, ttl, fence, claims, labels }, '|')
store(LOCK, HASH, {}, TOKEN, ends, mine[3], rest, px)
return no or { 'G', record_of({ TOKEN, ends, mine[3], rest }), mine[2] - NOW_MS }
