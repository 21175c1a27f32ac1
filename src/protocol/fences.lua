-- The last fence of each resource, in two generations, so that a name that is not used any more leaves nothing: the hashes
-- redlockd:fences:0 and :1 (resource -> fence), that of meta's gen and the one before. The older one is forgotten as a whole, by
-- the script that gives the first fence of the next generation, and with it base rises to what hw was when the older one ended:
-- no fence is forgotten without a floor above it, whatever clocks do. (acquire.lua has the same in line.) The value of 65 bytes
-- makes Redis keep a table from the start, and no list that is searched from end to end while it has up to 512 names.
local FENCES = 'redlockd:fences:'
-- The next generation, if it is time. Called before a fence is given. Returns base.
local function begin_generation()
  local base, gen, now = tonumber(m[4] or 0), tonumber(m[5] or -1), math.floor(NOW / 1000 / ARGV[3])
  if now ~= gen then
    base = math.max(base, now == gen + 1 and tonumber(redis.call('HMGET', META, 'last')[1] or hw) or hw)
    m[4], m[5] = base, now
    redis.call('HSET', META, 'base', string.format('%.0f', base), 'gen', now, 'last', string.format('%.0f', hw))
    for n = now, now == gen + 1 and now or now + 1 do
      local done = redis.pcall('UNLINK', FENCES .. n % 2)
      if type(done) == 'table' then redis.call('DEL', FENCES .. n % 2) end -- a user without the right to it
    end
    redis.call('HSET', FENCES .. now % 2, '', string.rep('-', 65))
  end
  return base
end
-- The last fence that is known of a resource; 0: none.
local function last_fence(resource)
  local a, b = redis.call('HMGET', FENCES .. 0, resource)[1], redis.call('HMGET', FENCES .. 1, resource)[1]
  return math.max(tonumber(a or 0), tonumber(b or 0))
end
-- Called before any lease has the fence.
local function keep_fence(resource, fence)
  local digits = string.format('%.0f', math.max(fence, last_fence(resource)))
  redis.call('HSET', FENCES .. tonumber(m[5] or 0) % 2, resource, digits)
  if fence > hw then
    hw = fence
    redis.call('HSET', META, 'hw', digits)
  end
end
