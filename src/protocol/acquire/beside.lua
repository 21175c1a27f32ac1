for _, i in ipairs(too_long or {}) do
  out[i][2] = cut_block(string.sub(KEYS[3 * i - 1], 80), out[i][2])
end
for _, i in ipairs(beside or {}) do
  local LOCK, HASH, v = KEYS[3 * i - 2], 'redlockd:m:' .. string.sub(KEYS[3 * i - 1], 80), found[3 * i]
  if v == 'S|s' or string.find(v, '^S|p%d+$') then
    local own = member_of(HASH, string.sub(KEYS[3 * i - 1], 15, 78))
    out[i] = own and { 'Y', own[3] } or held_by(LOCK, HASH, v, out[i][2], 0)
  end
end
return out
