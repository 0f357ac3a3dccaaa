-- Accepting a shortened topic may fail after its offsets were forgotten. They are forgotten once a finding: tried again, it
-- goes on with what was consumed of the new log since.
ALTER TABLE shortened_topic ADD COLUMN read_anew boolean NOT NULL DEFAULT false;
