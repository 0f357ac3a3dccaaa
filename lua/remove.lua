-- Removes the state of a deleted campaign. The state of another campaign that took the name is left alone.
--
-- KEYS  meta, occupied-count, users, pending, pending-claims
-- ARGV  id
-- Answers {0, keys removed}.
local id = call('HGET', KEYS[1], 'id')
if id and id ~= ARGV[1] then
  return {DONE, 0}
end
return {DONE, call('UNLINK', unpack(KEYS))}
