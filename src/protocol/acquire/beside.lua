for _, i in ipairs(too_long or {}) do
  out[i][2] = cut_block(string.sub(KEYS[2 * i], 80), out[i][2])
end
for _, i in ipairs(beside or {}) do
  local LOCK, HASH, v = KEYS[2 * i - 1], 'redlockd:m:' .. string.sub(KEYS[2 * i], 80), found[2 * i + 2]
  if v == 'S|s' or string.find(v, '^S|p%d+$') then
    local own = member_of(HASH, string.sub(KEYS[2 * i], 15, 78))
    out[i] = own and { 'Y', own[3] } or held_by(LOCK, HASH, v, out[i][2], 0)
  end
end
return out
