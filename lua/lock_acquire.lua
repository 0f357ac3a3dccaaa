-- Takes a lock if it is free. Its fencing token is larger than every one before, also after a flush and when the clock
-- was set back: the larger of the time in µs, the caller's floor + 1 and the last token + 1.
--
-- KEYS  lock, last token
-- ARGV  lease (ms), floor, life of the last token (ms)
-- Answers {1, token} or {0, ms until the lease of the present owner ends}.
if call('EXISTS', KEYS[1]) == 1 then
  return {0, call('PTTL', KEYS[1])}
end
local last = tonumber(call('GET', KEYS[2])) or 0
local token = int(math.max(now_us(), tonumber(ARGV[2]) + 1, last + 1))
call('SET', KEYS[1], token, 'PX', ARGV[1])
call('SET', KEYS[2], token, 'PX', ARGV[3])
return {1, token}
