for _, i in ipairs(beside) do
  local LOCK, HASH, v = KEYS[4 * i - 1], 'redlockd:m:' .. ARGV[7 * i + 3], found[4 * i - 2]
  if v == 'S|s' or string.find(v, '^S|p%d+$') then
    out[i] = held_by(LOCK, HASH, v, out[i][2], 0)
    for _, of in ipairs((members_of(HASH))) do
      if of[1] == ARGV[7 * i - 2] then out[i] = { 'Y', of[3] } end
    end
  end
end
return out
