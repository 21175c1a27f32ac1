for _, i in ipairs(beside) do
  local LOCK, v, before, AT = K[2 * i - 1], found[i + 3], earlier[i], ARGV[2 * i - 1]
  local TOKEN, RESOURCE = sub(K[2 * i], 15, 78), sub(K[2 * i], 80, AT == '' and -1 or -19)
  local HASH, rest = 'redlockd:m:' .. RESOURCE, nil
  local mine = member_of(HASH, TOKEN)
  if mine and AT ~= '' then -- withdraw one attempt's claim; others may still hold
    local head, claims, tail = string.match(mine[4], '^(%d+|%d+|%d+|)([^|]*)(|.*)$')
    local a, b = string.find(claims or '', AT .. ',', 1, true)
    if not a then
      mine = nil
    elseif #claims > b - a + 1 then
      rest = head .. string.sub(claims, 1, a - 1) .. string.sub(claims, b + 1) .. tail
    end
  end
  if mine and string.sub(v, 1, 2) == 'S|' then
    local last, over = ends_without(HASH, TOKEN)
    out[i] = not before and 1 or { 'R', before }
    if rest then
      redis.pcall('HSET', HASH, TOKEN, string.format('%.0f', mine[2]) .. '|' .. mine[3] .. '|' .. rest)
    elseif last == 0 then
      redis.call('DEL', LOCK, HASH)
      redis.call('ZREM', 'redlockd:leases', RESOURCE)
    else
      over[#over + 1] = TOKEN
      redis.call('HDEL', HASH, unpack(over))
      redis.call('PEXPIRE', LOCK, math.max(last - NOW_MS, 1))
      redis.call('PEXPIRE', HASH, math.max(last - NOW_MS, 1))
    end
    -- The end of one of several shared leases lets nobody in. That of a permit frees its slot.
    if found[2] and not rest and (last == 0 or mine[3] ~= 's') then
      local slot = string.match(mine[3], '^p(%d+)/')
      slot = slot and ':' .. slot or ''
      redis.pcall('PUBLISH', 'redlockd:freed:' .. RESOURCE, (AT == '' and 'r' or 'c') .. string.sub(TOKEN, 1, 8) .. slot)
    end
  end
end
return out
