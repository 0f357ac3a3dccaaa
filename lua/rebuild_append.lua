-- Appends entries to the staging keys of a rebuild. A user counts once: the first entry wins, so an append whose answer
-- was lost may be sent again.
--
-- KEYS  meta; then staging meta, occupied-count, users, pending, pending-claims, named by the epoch
-- ARGV  epoch, life of a rebuild that makes no progress (ms), then of each entry: user, marker
--       ('<request> <batch>.<i>' or '<request> canceled'), batch (or '' if it is not pending), time in ms it was
--       reserved (or '')
-- Answers {0, users that had no entry before}, or {12} if another rebuild, a flush or another server came between.
local meta = call('HMGET', KEYS[1], 'epoch', 'status', 'server')
if meta[1] ~= ARGV[1] or meta[2] ~= 'rebuilding' or meta[3] ~= this_server()
  or call('EXISTS', KEYS[2], KEYS[3], KEYS[4]) ~= 3 then
  return {SUPERSEDED}
end
local idle = ARGV[2]
local users, taken, pending = 0, 0, 0
for i = 3, #ARGV, 4 do
  local marker, batch = ARGV[i + 1], ARGV[i + 2]
  if call('HSETNX', KEYS[4], ARGV[i], marker) == 1 then
    users = users + 1
    if string.sub(marker, -9) ~= ' canceled' then
      taken = taken + 1
    end
    if batch ~= '' then
      pending = pending + 1
      call('ZADD', KEYS[5], 'NX', ARGV[i + 3], batch)
      call('HINCRBY', KEYS[6], batch, 1)
    end
  end
end
call('INCRBY', KEYS[3], taken)
call('HINCRBY', KEYS[2], 'pending', pending)
for k = 1, 6 do
  call('PEXPIRE', KEYS[k], idle)
end
return {DONE, users}
