-- An exclusive lease becomes a shared one with the same token, record and end. KEYS: 1 meta, 2 lock, 3 token tombstone,
-- 4 members
-- ARGV: as in marker.lua, 5 token hash, 6 resource, 7 the claims that the sender knows of: an attempt that joined the lease since
--       then counts on an exclusive one
-- Replies: G left record | M | O 0 | Y mode | D reason | W left | K C P Q S V
local NOW_MS = math.floor(NOW / 1000)
