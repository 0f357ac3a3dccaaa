-- Takes batches out of pending: their claims have an outcome in Postgres. Once; always after release.
--
-- KEYS  meta, occupied-count, users, pending, pending-claims
-- ARGV  batches
-- Answers {0, batches that were pending}, {3} NOT_INITIALIZED or {4} REBUILDING.
local meta_key, pending_key, claims_key = KEYS[1], KEYS[4], KEYS[5]
local meta = call('HMGET', meta_key, 'status', 'server', 'pending')
local unusable = judge(meta[1], meta[2], meta[3])
if unusable then
  return {unusable}
end
local settled, claims = 0, 0
for _, batch in ipairs(ARGV) do
  if call('ZREM', pending_key, batch) == 1 then
    settled = settled + 1
    claims = claims + (tonumber(call('HGET', claims_key, batch)) or 0)
    call('HDEL', claims_key, batch)
  end
end
-- What the batches added to the sum leaves it, also below zero, where a release freed more of one than it counted.
if claims ~= 0 then
  call('HINCRBY', meta_key, 'pending', -claims)
end
return {DONE, settled}
