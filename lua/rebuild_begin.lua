-- Shuts a campaign's door and lays out the staging keys of a rebuild. What the old keys hold stays until the commit.
--
-- KEYS  meta; then staging meta, occupied-count, users, pending, pending-claims, named by the epoch
-- ARGV  id, epoch, life of a rebuild that makes no progress (ms)
-- Answers {0}, or {12} if meta has a newer epoch, or this one and it is open already.
local meta_key = KEYS[1]
local id, epoch, idle = ARGV[1], ARGV[2], ARGV[3]
local meta = call('HMGET', meta_key, 'epoch', 'status')
local present = tonumber(meta[1])
if present and (present > tonumber(epoch) or (present == tonumber(epoch) and meta[2] ~= 'rebuilding')) then
  return {SUPERSEDED}
end
call('HSET', meta_key, 'id', id, 'epoch', epoch, 'status', 'rebuilding', 'server', this_server())
call('PEXPIRE', meta_key, idle)
call('UNLINK', KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6])
call('HSET', KEYS[2], 'pending', 0)
call('SET', KEYS[3], 0)
call('HSET', KEYS[4], '', '')
for k = 2, 4 do
  call('PEXPIRE', KEYS[k], idle)
end
return {DONE}
