-- How this process names locks once the key template was changed (docs/views.md, *Changing the terms*), which an instance in another
-- view need not know. redlockd:names: the template, then ' o' while leases leave these names, or ' i' while they receive them; in
-- between, a lease is at redlockd:moved:RESOURCE. Without this key: as the sender names them.
local NAMES = redis.call('MGET', 'redlockd:names')[1]
local OWN_HEAD, OWN_TAIL, MOVING = string.match(NAMES or '', '^(.-){resource}(%S*) ?(.*)$')
local function lock_of(resource, named)
  if not NAMES then return named end
  local moved = 'redlockd:moved:' .. resource
  if MOVING ~= '' and redis.call('EXISTS', moved) == 1 then return moved end
  return OWN_HEAD .. resource .. OWN_TAIL
end
