-- A topic of claims that ends before what was consumed of it: it was made anew or cut back, and nobody reads what is stored
-- below `consumed`. While its row is here no door takes claims and nothing is abandoned; `coupon topics accept` removes it.
CREATE TABLE shortened_topic (
    topic      text COLLATE "C" PRIMARY KEY,
    -- Where it was found.
    partition  integer NOT NULL,
    consumed   bigint NOT NULL,
    end_offset bigint NOT NULL,
    found_at   timestamptz NOT NULL DEFAULT statement_timestamp()
);
