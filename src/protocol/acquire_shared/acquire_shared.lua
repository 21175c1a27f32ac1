-- A shared lease, or the permit with one slot. KEYS: 1 meta, 2 index, 3 lock, 4 token tombstone, 5 attempt tombstone,
-- 6 members, 7 intent
-- ARGV: as in marker.lua, 5 token hash, 6 ttl_ms, 7 px_ms (ttl + lock_delay), 8 attempt, 9 labels, 10 resource, 11 kind (s, or p
--       and the limit), 12 mode (s, or p and slot/limit), 13 proposed fence (0: none), 14 how many members a resource may have
-- Replies: G fence joined | B pttl value (held by an exclusive lease, or a foreign client: '') | H left kind intent slots
--        record, ... | Y mode (this token holds it in another one; e: exclusive) | D reason | X | F | W left | K C P Q S V
local NOW_MS = math.floor(NOW / 1000)
