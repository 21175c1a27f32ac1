local HASH = 'redlockd:m:' .. ARGV[8]
local MODE, TOKEN, rest = string.match(VALUE, '^M([^|]*)|(%x+)|(.*)$')
local KIND, slot = string.gsub(MODE, '%d+/', ''), string.match(MODE, '^p(%d+)/')
local living, _, _, over = members_of(HASH)
if not r[1] then
  if redis.call('EXISTS', LOCK) == 1 then return { 'O', 0 } end -- of another type
  if #living + #over > 0 then redis.call('DEL', HASH) end
  living, over = {}, {}
elseif r[1] ~= 'S|' .. KIND or #living == 0 then
  return { 'O', 0 }
end
for _, of in ipairs(living) do
  if of[1] == TOKEN or slot and string.match(of[3], '^p(%d+)/') == slot then return { 'O', 0 } end
end
if not r[1] then redis.call('SET', LOCK, 'S|' .. KIND, 'PX', px) end
store(LOCK, HASH, over, TOKEN, NOW_MS + px, MODE, rest, px)
return stored()
