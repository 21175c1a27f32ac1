local out = { 'I', no[1], no[2], 'members', left, '', fence }
for _, of in ipairs((members_of('redlockd:m:' .. string.sub(KEYS[3], 16)))) do
  out[#out + 1], out[#out + 2] = of[2] - NOW_MS, record_of(of)
end
if #out == 7 then out[4], out[6] = 'foreign', redis.sha1hex(v) end
return out
