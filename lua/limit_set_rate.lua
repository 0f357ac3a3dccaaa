-- Stores another rate for the installation. Grants nothing by itself.
--
-- KEYS  stored rate
-- ARGV  permits a second (0: no limit), life of the stored rate where nobody asks for permits (ms)
-- Answers {1}.
call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return {1}
