-- Gives permits of the installation's processing limit: at most `rate` in any window of one second, in part where more
-- are asked for. A log of what the last second gave, not a bucket: a changed rate finds nothing saved up.
--
-- KEYS  stored rate, log (list of '<µs> <permits>', oldest first), used (their sum)
-- ARGV  permits wanted, rate where none is stored (0: no limit), life of the stored rate (ms)
-- Answers {permits, µs until more may be free}.
local WINDOW = 1000000
local wanted = tonumber(ARGV[1])
local stored = call('GET', KEYS[1])
if stored then
  call('PEXPIRE', KEYS[1], ARGV[3])
end
local rate = tonumber(stored or ARGV[2])
if rate == 0 then
  return {wanted, 0}
end

local log_key, used_key = KEYS[2], KEYS[3]
local now = now_us()
local used = tonumber(call('GET', used_key)) or 0
local function read(entry)
  local at, permits = string.match(entry, '^(%d+) (%d+)$')
  return tonumber(at), tonumber(permits)
end

local newest = call('LINDEX', log_key, -1)
if newest and read(newest) > now then
  -- The clock was set back: count all of it as given now.
  call('DEL', log_key)
  call('RPUSH', log_key, int(now) .. ' ' .. int(used))
end
local oldest
while true do
  local entry = call('LINDEX', log_key, 0)
  if not entry then
    break
  end
  local at, permits = read(entry)
  if at > now - WINDOW then
    oldest = at
    break
  end
  call('LPOP', log_key)
  used = used - permits
end

local permits = math.max(0, math.min(wanted, rate - used))
if permits > 0 then
  used = used + permits
  call('RPUSH', log_key, int(now) .. ' ' .. int(permits))
  oldest = oldest or now
end
if used > 0 then
  -- Both live longer than the window and end together.
  call('SET', used_key, int(used), 'PX', 2000)
  call('PEXPIRE', log_key, 2000)
else
  call('DEL', log_key, used_key)
end
if permits == wanted then
  return {permits, 0}
end
return {permits, math.max(1, oldest + WINDOW - now)}
