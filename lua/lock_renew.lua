-- Prolongs a lock that is still the caller's.
--
-- KEYS  lock
-- ARGV  token, lease (ms)
-- Answers {1}, or {0} if it is lost.
if call('GET', KEYS[1]) ~= ARGV[1] then
  return {0}
end
call('PEXPIRE', KEYS[1], ARGV[2])
return {1}
