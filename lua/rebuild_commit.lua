-- Puts the staging keys of a rebuild in place and opens the door. UNLINK before RENAME: overwriting a hash of a million
-- users would block the server.
--
-- KEYS  meta, occupied-count, users, pending, pending-claims; then the same five of staging, named by the epoch
-- ARGV  epoch, id, revision, quantity, opens_at (ms or ''), closes_at (ms or ''), ttl (ms), status (open or paused),
--       users announced
-- Answers {0}, or {12} if another rebuild, a flush or another server came between, or fewer users are staged.
local epoch, id, revision, quantity, opens_at, closes_at, ttl, status, users =
  ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7], ARGV[8], ARGV[9]
local server = this_server()
local meta = call('HMGET', KEYS[1], 'epoch', 'status', 'server')
if meta[1] ~= epoch or meta[2] ~= 'rebuilding' or meta[3] ~= server
  or call('EXISTS', KEYS[6], KEYS[7], KEYS[8]) ~= 3
  or call('HLEN', KEYS[8]) - 1 < tonumber(users) then
  return {SUPERSEDED}
end
local taken = tonumber(call('GET', KEYS[7]))
local pending = call('HGET', KEYS[6], 'pending')
local at = int(life(now_ms(), tonumber(ttl), tonumber(opens_at), tonumber(closes_at)))
call('UNLINK', KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6])
for k = 7, 10 do
  if call('EXISTS', KEYS[k]) == 1 then
    call('RENAME', KEYS[k], KEYS[k - 5])
  end
end
call('HSET', KEYS[1], 'id', id, 'epoch', epoch, 'revision', revision,
  'quantity', int(math.max(tonumber(quantity), taken)), 'status', status, 'opens_at', opens_at, 'closes_at', closes_at,
  'ttl', ttl, 'pending', pending, 'server', server, 'expires', at)
for k = 1, 5 do
  call('PEXPIREAT', KEYS[k], at)
end
return {DONE}
