-- What one user holds.
--
-- KEYS  meta, occupied-count, users, pending, pending-claims
-- ARGV  user
-- Answers {0, marker or ''}, {3} NOT_INITIALIZED or {4} REBUILDING.
local meta = call('HMGET', KEYS[1], 'status', 'server', 'pending')
local unusable = judge(meta[1], meta[2], meta[3])
if unusable then
  return {unusable}
end
return {DONE, call('HGET', KEYS[3], ARGV[1]) or ''}
