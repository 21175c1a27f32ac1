for _, i in ipairs(too_long or {}) do
  out[i][2] = cut_block(names[i], out[i][2])
end
for _, i in ipairs(beside or {}) do
  local LOCK, HASH, v = KEYS[i], 'redlockd:m:' .. names[i], found[i + 3]
  if v == 'S|s' or string.find(v, '^S|p%d+$') then
    local own = member_of(HASH, string.sub(ARGV[3 * i + 5], 1, 64))
    out[i] = own and { 'Y', own[3] } or held_by(LOCK, HASH, v, out[i][2], 0)
  end
end
return out
