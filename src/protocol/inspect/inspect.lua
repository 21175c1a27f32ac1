-- This node's vote and what it holds for one resource. KEYS: 1 meta, 2 lock   ARGV: as in marker.lua
-- Replies: I vote n kind pttl value; vote: A, or the code of the refusal and n its number; kind: free | ours | foreign;
-- value: of our own lease in full, of a foreign lock its fingerprint
local no = not fit and judge() or { 'A', 0 }
local kind = redis.call('TYPE', KEYS[2]).ok
if kind == 'none' then return { 'I', no[1], no[2], 'free', 0, '' } end
local left = redis.call('PTTL', KEYS[2])
if kind ~= 'string' then return { 'I', no[1], no[2], 'foreign', left, 'type:' .. kind } end
local v = redis.call('GET', KEYS[2])
if string.byte(v, 65) == 124 and string.find(v, '^%x+|%d+|%d+|%d+|') then
  return { 'I', no[1], no[2], 'ours', left, v }
end
return { 'I', no[1], no[2], 'foreign', left, redis.sha1hex(v) }
