-- The remaining ms of a resource's block (views.md): cut to a quarantine where this clock went backwards, since no lease lasts
-- longer, or to the end of a foreign lock that it stands for.
local function cut_block(resource, left)
  local BLOCK = 'redlockd:block:' .. resource
  local longest = left > Q and math.max(Q, (string.match(redis.call('HMGET', BLOCK, '*')[1] or '', '^%d+') or 0) - math.floor(NOW / 1000)) or left
  if left > longest then redis.call('PEXPIRE', BLOCK, longest) end
  return math.min(left, longest)
end
