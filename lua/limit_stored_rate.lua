-- Tells the rate that is stored for the installation. Changes nothing, not even its life.
--
-- KEYS  stored rate
-- Answers {permits a second (0: no limit), or -1 where none is stored}.
return {tonumber(call('GET', KEYS[1]) or -1)}
