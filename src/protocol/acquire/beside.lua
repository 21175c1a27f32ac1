for _, i in ipairs(beside) do
  local LOCK, HASH, v, own = KEYS[3 * i - 1], 'redlockd:m:' .. ARGV[7 * i + 3], found[3 * i], nil
  if v == 'S|s' or string.find(v, '^S|p%d+$') then
    for _, of in ipairs((members_of(HASH))) do
      if of[1] == ARGV[7 * i - 2] then own = of end
    end
    out[i] = own and { 'Y', own[3] } or held_by(LOCK, HASH, v, out[i][2], 0)
  end
end
return out
