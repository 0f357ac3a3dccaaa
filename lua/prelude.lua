-- Goes before every script (see campaign::redis::script). Gives the judgment that all scripts of a campaign's state begin
-- with, so that no script reads an absent key as zero or trusts what another server built.
--
-- A campaign's keys, in this order wherever a script takes them:
--   meta            hash    id epoch revision quantity status opens_at closes_at ttl pending server expires
--                           status is open, paused or rebuilding; opens_at and closes_at are ms or '';
--                           ttl is ms; expires is the time (ms) that the keys live to
--   occupied-count  string  slots taken: pending, issued and parked
--   users           hash    user -> '<request> <batch>.<i>' or '<request> canceled'; field '' is always there
--   pending         zset    batch, scored by the time (ms) it was reserved
--   pending-claims  hash    batch -> its claims that still hold a slot; meta.pending is their sum
--
-- Codes that several scripts answer, always as the first element:
--   0 done    3 NOT_INITIALIZED    4 REBUILDING    10 an older revision    11 another epoch    12 superseded
local call = redis.call
local DONE, NOT_INITIALIZED, REBUILDING = 0, 3, 4
local OLDER_REVISION, OTHER_EPOCH, SUPERSEDED = 10, 11, 12

-- Numbers over 14 digits: tostring would round them.
local function int(number)
  return string.format('%.0f', number)
end

local function now_us()
  local time = call('TIME')
  return tonumber(time[1]) * 1000000 + tonumber(time[2])
end

local function now_ms()
  local time = call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

local function this_server()
  return string.match(call('INFO', 'server'), 'run_id:(%x+)')
end

-- nil: the state is usable. The arguments come from meta. While claims are pending, the keys that tell which must be
-- there too: without them nobody would sweep these claims, and a repeated request would be taken for a settled one.
local function judge(status, server, pending)
  if not status or server ~= this_server() then
    return NOT_INITIALIZED
  end
  if status == 'rebuilding' then
    return REBUILDING
  end
  if not pending then
    return NOT_INITIALIZED
  end
  local last = tonumber(pending) > 0 and 5 or 3
  if call('EXISTS', unpack(KEYS, 2, last)) ~= last - 1 then
    return NOT_INITIALIZED
  end
  return nil
end

-- '<request> <batch>.<i>' or '<request> canceled', taken apart; rest is 'canceled' or the reservation.
local function read_marker(marker)
  local space = string.find(marker, ' ', 1, true)
  return string.sub(marker, 1, space - 1), string.sub(marker, space + 1)
end

local function batch_of(reservation)
  return string.match(reservation, '^(.*)%.%d+$')
end

-- The time (ms) that keys must live to: ttl from now, and ttl past the end (and the beginning) of the window.
local function life(now, ttl, opens_at, closes_at)
  return math.max(now, opens_at or 0, closes_at or 0) + ttl
end
