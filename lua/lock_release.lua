-- Gives a lock back if it is still the caller's.
--
-- KEYS  lock
-- ARGV  token
-- Answers {1}, or {0} if it was lost before.
if call('GET', KEYS[1]) ~= ARGV[1] then
  return {0}
end
call('DEL', KEYS[1])
return {1}
