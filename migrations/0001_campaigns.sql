-- Expand, then contract: the previous and the next release run side by side on this schema. A migration that is
-- released is never edited. It adds (tables, nullable columns, columns with a default, indexes built concurrently);
-- what nobody reads any more goes away one release after the last reader.
--
-- Texts are compared bytewise (COLLATE "C"): faster, and an upgrade of the system's locale cannot break an index.
-- There are no foreign keys to `campaign`: its rows are never deleted, writers hold the row lock, and records of
-- campaigns that were never known must be decided, too.

-- What was applied, and the numbers that guard it. One row a sale; every persisted batch updates it, so pages keep
-- room for the next version of the row beside the last one.
CREATE TABLE campaign (
    id             uuid PRIMARY KEY,
    namespace      text COLLATE "C" NOT NULL,
    name           text COLLATE "C" NOT NULL,
    quantity       bigint NOT NULL CHECK (quantity >= 0),
    -- Coupons that occupy a slot: all but the canceled ones that gave it back.
    issued         bigint NOT NULL DEFAULT 0 CHECK (issued >= 0),
    -- Rows of `parked` that are not discarded: they occupy a slot, too.
    parked         bigint NOT NULL DEFAULT 0 CHECK (parked >= 0),
    -- Newest life of the state in Redis; 0: never built.
    epoch          bigint NOT NULL DEFAULT 0,
    -- Largest fencing token that wrote.
    fence          bigint NOT NULL DEFAULT 0,
    -- Version of the terms below.
    revision       bigint NOT NULL DEFAULT 1,
    ttl_ms         bigint NOT NULL CHECK (ttl_ms > 0),
    opens_at       timestamptz,
    closes_at      timestamptz,
    paused         boolean NOT NULL,
    on_cancel      text NOT NULL CHECK (on_cancel IN ('Restock', 'Retain')),
    on_dead_letter text NOT NULL CHECK (on_dead_letter IN ('Park', 'Release')),
    code_prefix    text NOT NULL,
    -- At most 100 years, so that issue time + validity is always a timestamp.
    valid_for_ms   bigint CHECK (valid_for_ms BETWEEN 1 AND 3155760000000),
    details        jsonb NOT NULL,
    created_at     timestamptz NOT NULL DEFAULT now(),
    -- Deleted with `deletionPolicy: Delete`: its name is free for another campaign.
    archived_at    timestamptz,
    -- Deleted with `deletionPolicy: Retain`: shut, and brought back by the next apply.
    retired_at     timestamptz,
    -- The promise, once more: whatever the code does, no row takes a campaign over its quantity.
    CONSTRAINT campaign_not_oversold CHECK (issued + parked <= quantity)
) WITH (fillfactor = 50);

-- One live or retired campaign a name; archived ones keep their rows.
CREATE UNIQUE INDEX campaign_live_name ON campaign (namespace, name) WHERE archived_at IS NULL;

-- End offsets at the rebuild of an epoch: records of earlier epochs at or past them are stale. Never changed, never
-- removed.
CREATE TABLE epoch_cut (
    campaign_id uuid NOT NULL,
    epoch       bigint NOT NULL,
    partition   integer NOT NULL,
    end_offset  bigint NOT NULL,
    PRIMARY KEY (campaign_id, epoch, partition)
);

-- The coupons. The id is that of the request that won it.
CREATE TABLE coupon (
    id            uuid PRIMARY KEY,
    campaign_id   uuid NOT NULL,
    user_id       text COLLATE "C" NOT NULL,
    code          text COLLATE "C" NOT NULL,
    reservation   text COLLATE "C" NOT NULL,
    status        text COLLATE "C" NOT NULL DEFAULT 'ISSUED' CHECK (status IN ('ISSUED', 'USED', 'CANCELED')),
    -- Whether its cancel gave the slot back. Kept here, since the campaign's policy may change later.
    slot_returned boolean NOT NULL DEFAULT false,
    issued_at     timestamptz NOT NULL,
    used_at       timestamptz,
    canceled_at   timestamptz,
    valid_until   timestamptz,
    CONSTRAINT coupon_one_a_user UNIQUE (campaign_id, user_id),
    CONSTRAINT coupon_code UNIQUE (code)
);

-- "My coupons", over all campaigns. A user has few: they are sorted after the lookup.
CREATE INDEX coupon_user ON coupon (user_id);

-- Decided batches. Whoever writes one first has decided.
CREATE TABLE batch (
    campaign_id uuid NOT NULL,
    batch       text COLLATE "C" NOT NULL,
    outcome     text COLLATE "C" NOT NULL CHECK (outcome IN ('stored', 'abandoned', 'stale')),
    decided_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (campaign_id, batch)
);

-- Claims of decided batches that have no row. They keep the user, so that their release can be repeated.
CREATE TABLE rejection (
    campaign_id uuid NOT NULL,
    reservation text COLLATE "C" NOT NULL,
    batch       text COLLATE "C" NOT NULL,
    request_id  uuid NOT NULL,
    user_id     text COLLATE "C" NOT NULL,
    reason      text COLLATE "C" NOT NULL,
    decided_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (campaign_id, reservation)
);

CREATE INDEX rejection_batch ON rejection (campaign_id, batch);
CREATE INDEX rejection_request ON rejection (request_id);
-- For the limit of dead letters a minute.
CREATE INDEX rejection_dead_letter ON rejection (campaign_id, decided_at) WHERE reason = 'DEAD_LETTERED';

-- Dead letters whose slot stays taken until somebody replays or discards them.
CREATE TABLE parked (
    campaign_id  uuid NOT NULL,
    reservation  text COLLATE "C" NOT NULL,
    request_id   uuid NOT NULL,
    user_id      text COLLATE "C" NOT NULL,
    reason       text NOT NULL,
    parked_at    timestamptz NOT NULL DEFAULT now(),
    -- Discarded: the slot is free here; the entry stays until Redis confirmed its release.
    discarded_at timestamptz,
    PRIMARY KEY (campaign_id, reservation)
);

CREATE UNIQUE INDEX parked_one_a_user ON parked (campaign_id, user_id) WHERE discarded_at IS NULL;
CREATE INDEX parked_discarded ON parked (discarded_at) WHERE discarded_at IS NOT NULL;

-- Next offset of every partition, written with the rows that it accounts for. A dozen hot rows.
CREATE TABLE consumed (
    topic       text COLLATE "C" NOT NULL,
    partition   integer NOT NULL,
    next_offset bigint NOT NULL,
    PRIMARY KEY (topic, partition)
) WITH (fillfactor = 20);

-- Events to publish. A row is deleted once it is published (and restocked): what is here, is to do.
CREATE TABLE outbox (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    type        text COLLATE "C" NOT NULL,
    coupon_id   uuid NOT NULL,
    campaign_id uuid NOT NULL,
    campaign    text COLLATE "C" NOT NULL,
    user_id     text COLLATE "C" NOT NULL,
    occurred_at timestamptz NOT NULL,
    -- A cancel that gives its slot back: the row may go only when Redis has it.
    restock     boolean NOT NULL DEFAULT false,
    -- Left alone until then; null: due.
    retry_at    timestamptz
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000);

-- The projection of the events.
CREATE TABLE coupon_activity (
    event_id    uuid PRIMARY KEY,
    type        text COLLATE "C" NOT NULL,
    coupon_id   uuid NOT NULL,
    campaign_id uuid NOT NULL,
    campaign    text COLLATE "C" NOT NULL,
    user_id     text COLLATE "C" NOT NULL,
    occurred_at timestamptz NOT NULL
);

CREATE INDEX coupon_activity_coupon ON coupon_activity (coupon_id);
