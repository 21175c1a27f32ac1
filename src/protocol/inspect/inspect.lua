-- This node's vote and what it holds for one resource. KEYS: 1 meta, 2 lock, 3 block   ARGV: as in marker.lua
-- Replies: I vote n kind pttl value fence; vote: A, or the code of the refusal and n its number; kind: free | ours | members | foreign;
-- value: of our own lease in full, of a foreign lock its fingerprint; members: for each, after fence: left, record; fence: the last one that is known, 0 if none is
local no = not fit and check_vote() or nil
if not no then
  local left = redis.call('PTTL', KEYS[3])
  no = left == -2 and { 'A', 0 } or { 'W', left }
end
local kind, fence = redis.call('TYPE', KEYS[2]).ok, last_fence(string.sub(KEYS[3], 16))
if kind == 'none' then return { 'I', no[1], no[2], 'free', 0, '', fence } end
local left = redis.call('PTTL', KEYS[2])
if kind ~= 'string' then return { 'I', no[1], no[2], 'foreign', left, 'type:' .. kind, fence } end
local v = redis.call('GET', KEYS[2])
if string.byte(v, 65) == 124 and string.find(v, '^%x+|%d+|%d+|%d+|') then
  return { 'I', no[1], no[2], 'ours', left, v, fence }
end
if string.sub(v, 1, 2) ~= 'S|' then return { 'I', no[1], no[2], 'foreign', left, redis.sha1hex(v), fence } end
local NOW_MS = math.floor(NOW / 1000)
