-- Frees the slot of a canceled coupon, once. The marker stays, as canceled: the user cannot claim again.
--
-- KEYS  meta, occupied-count, users, pending, pending-claims
-- ARGV  user, request, epoch (read from Postgres after the cancel)
-- Answers {0, slots freed}, {3} NOT_INITIALIZED or {4} REBUILDING (another epoch too: try again).
local meta_key, occupied_key, users_key, claims_key = KEYS[1], KEYS[2], KEYS[3], KEYS[5]
local user, request, epoch = ARGV[1], ARGV[2], ARGV[3]
local meta = call('HMGET', meta_key, 'status', 'server', 'epoch', 'pending')
local unusable = judge(meta[1], meta[2], meta[4])
if unusable then
  return {unusable}
end
if meta[3] ~= epoch then
  return {REBUILDING}
end
local marker = call('HGET', users_key, user)
if not marker then
  -- Nothing is taken for him, but his coupon is there: a second one must not be reserved.
  call('HSET', users_key, user, request .. ' canceled')
  return {DONE, 0}
end
local holder, held = read_marker(marker)
if holder ~= request or held == 'canceled' then
  return {DONE, 0}
end
call('HSET', users_key, user, request .. ' canceled')
call('DECRBY', occupied_key, 1)
local batch = batch_of(held)
if call('HEXISTS', claims_key, batch) == 1 then
  call('HINCRBY', claims_key, batch, -1)
  call('HINCRBY', meta_key, 'pending', -1)
end
return {DONE, 1}
