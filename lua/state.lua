-- The numbers of a campaign, in one answer.
--
-- KEYS  meta, occupied-count, users, pending, pending-claims
-- Answers {0, id, epoch, revision, status, quantity, taken, pending, oldest pending (ms or ''), now (ms), opens_at,
-- closes_at}, {3} NOT_INITIALIZED, or {4, id, epoch} while it is rebuilt.
local meta = call('HMGET', KEYS[1],
  'status', 'server', 'id', 'epoch', 'revision', 'quantity', 'pending', 'opens_at', 'closes_at')
local unusable = judge(meta[1], meta[2], meta[7])
if unusable == REBUILDING then
  return {REBUILDING, meta[3], meta[4]}
end
if unusable then
  return {unusable}
end
local oldest = call('ZRANGE', KEYS[4], 0, 0, 'WITHSCORES')
return {DONE, meta[3], meta[4], meta[5], meta[1], meta[6], call('GET', KEYS[2]), meta[7],
  oldest[2] and int(tonumber(oldest[2])) or '', int(now_ms()), meta[8], meta[9]}
