-- Sets a campaign's quantity, window, ttl and pause. What is taken stays: the quantity is max(wanted, taken).
--
-- KEYS  meta, occupied-count, users, pending, pending-claims
-- ARGV  epoch, revision, quantity, opens_at (ms or ''), closes_at (ms or ''), ttl (ms), status (open or paused),
--       '1' if these terms are not in Postgres yet
-- Answers {0, quantity, taken}, {3} NOT_INITIALIZED, {4} REBUILDING, {10, revision} if the state's revision is newer (or
-- this one, and the terms are not in Postgres yet: another writer has taken it), {11, epoch} if the state is in another
-- life.
local meta_key, occupied_key = KEYS[1], KEYS[2]
local epoch, revision, wanted, opens_at, closes_at, ttl, status, ahead =
  ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7], ARGV[8]
local meta = call('HMGET', meta_key, 'status', 'server', 'epoch', 'revision', 'pending')
local unusable = judge(meta[1], meta[2], meta[5])
if unusable then
  return {unusable}
end
if meta[3] ~= epoch then
  return {OTHER_EPOCH, meta[3]}
end
local present = tonumber(meta[4])
if present > tonumber(revision) or (ahead == '1' and present == tonumber(revision)) then
  return {OLDER_REVISION, meta[4]}
end
local taken = tonumber(call('GET', occupied_key))
local quantity = int(math.max(tonumber(wanted), taken))
local at = int(life(now_ms(), tonumber(ttl), tonumber(opens_at), tonumber(closes_at)))
call('HSET', meta_key, 'revision', revision, 'quantity', quantity, 'opens_at', opens_at, 'closes_at', closes_at,
  'ttl', ttl, 'status', status, 'expires', at)
for k = 1, 5 do
  call('PEXPIREAT', KEYS[k], at)
end
return {DONE, quantity, int(taken)}
