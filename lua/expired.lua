-- Batches that have been pending for longer than a given time, oldest first.
--
-- KEYS  meta, occupied-count, users, pending, pending-claims
-- ARGV  age in ms, most batches to answer
-- Answers {0, batches...}, {3} NOT_INITIALIZED or {4} REBUILDING.
local meta = call('HMGET', KEYS[1], 'status', 'server', 'pending')
local unusable = judge(meta[1], meta[2], meta[3])
if unusable then
  return {unusable}
end
local before = '(' .. int(now_ms() - tonumber(ARGV[1]))
local answer = call('ZRANGEBYSCORE', KEYS[4], '-inf', before, 'LIMIT', 0, ARGV[2])
table.insert(answer, 1, DONE)
return answer
