-- Reserves slots for a batch of claims of one campaign, in their order.
--
-- KEYS  meta, occupied-count, users, pending, pending-claims
-- ARGV  batch, then user and request of each claim: at most 256
-- Answers for the whole call, when nothing was reserved:
--   {3} NOT_INITIALIZED   {4} REBUILDING   {5, opens_at} NOT_OPEN_YET   {6} CLOSED   {7} PAUSED
-- or {0, id, epoch, now in ms, judgment of each claim in order}, where a judgment is
--   0                SUCCESS: the slot is reserved
--   '1 <request>'    DUPLICATE: that request holds the user's slot, or held it and was canceled
--   2                SOLD_OUT
--   8                SETTLED: this very request holds the slot and its batch is settled
--   9                IN_FLIGHT: this very request holds the slot through a batch that is still pending
-- The time of this server alone decides the window. Never to be run twice for one batch.
local meta_key, occupied_key, users_key, pending_key, claims_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local meta = call('HMGET', meta_key,
  'status', 'server', 'id', 'epoch', 'quantity', 'opens_at', 'closes_at', 'ttl', 'expires', 'pending')
local status = meta[1]
local unusable = judge(status, meta[2], meta[10])
if unusable then
  return {unusable}
end
local opens_at, closes_at, ttl = tonumber(meta[6]), tonumber(meta[7]), tonumber(meta[8])
local now = now_ms()
if opens_at and now < opens_at then
  return {5, meta[6]}
end
if closes_at and now >= closes_at then
  return {6}
end
if status == 'paused' then
  return {7}
end

local batch = ARGV[1]
local taken = tonumber(call('GET', occupied_key))
local free = tonumber(meta[5]) - taken
local answer = {0, meta[3], meta[4], int(now)}
local won = 0
for i = 2, #ARGV, 2 do
  local user, request = ARGV[i], ARGV[i + 1]
  local marker = false
  local judgment = 2
  if free > 0 then
    if call('HSETNX', users_key, user, request .. ' ' .. batch .. '.' .. (i / 2 - 1)) == 1 then
      free = free - 1
      won = won + 1
      judgment = 0
    else
      marker = call('HGET', users_key, user)
    end
  else
    marker = call('HGET', users_key, user)
  end
  if marker then
    local holder, reservation = read_marker(marker)
    if holder ~= request or reservation == 'canceled' then
      judgment = '1 ' .. holder
    else
      local held_by = batch_of(reservation)
      -- The same request twice in this call: its batch is not in pending yet.
      if held_by == batch or call('ZSCORE', pending_key, held_by) then
        judgment = 9
      else
        judgment = 8
      end
    end
  end
  answer[#answer + 1] = judgment
end

local expires, wanted = tonumber(meta[9]), life(now, ttl, opens_at, closes_at)
if won > 0 then
  call('INCRBY', occupied_key, won)
  call('HINCRBY', meta_key, 'pending', won)
  call('ZADD', pending_key, 'NX', int(now), batch)
  call('HINCRBY', claims_key, batch, won)
end
-- Before the close `wanted` stands still, so most calls have nothing to prolong. A campaign without an end is kept by
-- its reservations; refusals prolong it only when half of its life is over: they must not cost writes.
if wanted > expires and (won > 0 or expires - now < ttl / 2) then
  local at = int(wanted)
  call('HSET', meta_key, 'expires', at)
  for k = 1, 5 do
    call('PEXPIREAT', KEYS[k], at)
  end
elseif won > 0 then
  -- These two may have been made by this call.
  local at = int(expires)
  call('PEXPIREAT', pending_key, at)
  call('PEXPIREAT', claims_key, at)
end
return answer
