-- One step of a scan for the claims that hold a slot through given batches.
--
-- KEYS  meta, occupied-count, users, pending, pending-claims
-- ARGV  cursor ('0' to begin), how many users to look at, batches
-- Answers {0, epoch, next cursor ('0' at the end), user and marker of each claim found}, {3} NOT_INITIALIZED or
-- {4} REBUILDING. If the epoch changes between steps, begin anew.
local meta = call('HMGET', KEYS[1], 'status', 'server', 'epoch', 'pending')
local unusable = judge(meta[1], meta[2], meta[4])
if unusable then
  return {unusable}
end
local wanted = {}
for i = 3, #ARGV do
  wanted[ARGV[i]] = true
end
local step = call('HSCAN', KEYS[3], ARGV[1], 'COUNT', ARGV[2])
local answer = {DONE, meta[3], step[1]}
local found = step[2]
for i = 1, #found, 2 do
  -- No match: the empty field, or a canceled marker.
  local batch = string.match(found[i + 1], ' (.*)%.%d+$')
  if batch and wanted[batch] then
    answer[#answer + 1] = found[i]
    answer[#answer + 1] = found[i + 1]
  end
end
return answer
