-- Frees the slots that these very reservations hold. Twice changes nothing; an old reservation never frees a newer
-- one; a canceled marker is left alone. Always before settle.
--
-- KEYS  meta, occupied-count, users, pending, pending-claims
-- ARGV  user and reservation of each claim
-- Answers {0, slots freed}, {3} NOT_INITIALIZED or {4} REBUILDING.
local meta_key, occupied_key, users_key, claims_key = KEYS[1], KEYS[2], KEYS[3], KEYS[5]
local meta = call('HMGET', meta_key, 'status', 'server', 'pending')
local unusable = judge(meta[1], meta[2], meta[3])
if unusable then
  return {unusable}
end
local freed = 0
local freed_of, batches = {}, {}
for i = 1, #ARGV, 2 do
  local user, reservation = ARGV[i], ARGV[i + 1]
  local marker = call('HGET', users_key, user)
  if marker and marker ~= '' then
    local _, held = read_marker(marker)
    if held == reservation then
      call('HDEL', users_key, user)
      freed = freed + 1
      local batch = batch_of(reservation)
      if not freed_of[batch] then
        batches[#batches + 1] = batch
      end
      freed_of[batch] = (freed_of[batch] or 0) + 1
    end
  end
end
if freed > 0 then
  call('DECRBY', occupied_key, freed)
end
-- A batch that is settled already has no claims in pending any more.
for _, batch in ipairs(batches) do
  if call('HEXISTS', claims_key, batch) == 1 then
    call('HINCRBY', claims_key, batch, -freed_of[batch])
    call('HINCRBY', meta_key, 'pending', -freed_of[batch])
  end
end
return {DONE, freed}
