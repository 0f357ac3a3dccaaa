-- How often the offsets of a topic were begun anew: its log was replaced, and `consumed` counts in another one. The same number
-- in `consumed` then means another place: who has read the old log finds it here that it must not move the new offset.
CREATE TABLE consumed_anew (
    topic text COLLATE "C" PRIMARY KEY,
    -- Where there is no row: 0.
    times bigint NOT NULL
);
