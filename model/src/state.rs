//! What the model knows at one moment. Small numbers throughout, so that millions of them can be looked at.

/// Most users.
pub const USERS: usize = 3;
/// Most attempts; each is a reserve call with one claim, so an attempt is also a batch and a reservation.
pub const ATTEMPTS: usize = 4;
/// Most lives of the state, counted from 1.
pub const EPOCHS: usize = 6;
/// Most processes of a kind.
pub const PROCESSES: usize = 2;
/// Most writers of terms, with the one that only aligns.
pub const WRITERS: usize = 3;

/// A set of attempts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Attempts(u8);

impl Attempts {
    /// Whether `attempt` is in it.
    pub fn has(self, attempt: u8) -> bool {
        self.0 & (1 << attempt) != 0
    }

    /// Adds; false if it was there.
    pub fn insert(&mut self, attempt: u8) -> bool {
        let new = !self.has(attempt);
        self.0 |= 1 << attempt;
        new
    }

    /// Removes; false if it was not there.
    pub fn remove(&mut self, attempt: u8) -> bool {
        let there = self.has(attempt);
        self.0 &= !(1 << attempt);
        there
    }

    /// How many.
    pub fn len(self) -> u8 {
        self.0.count_ones() as u8
    }

    /// Whether there is none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Those that are not in `other`.
    pub fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// In order.
    pub fn iter(self) -> impl Iterator<Item = u8> {
        (0..ATTEMPTS as u8).filter(move |&attempt| self.has(attempt))
    }
}

/// Where the door is with an attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Stage {
    /// The client has not asked, or was refused and may ask again.
    #[default]
    NotBegun,
    /// A slot is reserved, and the record is handed to the Kafka client.
    Publishing,
    /// Surely not stored: to be released.
    Releasing,
    /// Released: to be settled.
    Settling,
    /// The client was told SUCCESS.
    Success,
    /// The client was told that it failed or is unknown, or was told nothing since the intake died.
    Over,
}

/// An attempt of a claim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Attempt {
    /// Where the door is with it.
    pub stage: Stage,
    /// Less than `publishTimeout` has passed since the moment before its reserve call.
    pub fresh: bool,
    /// The record was sent and may still be appended, whether or not anybody waits for it.
    pub in_flight: bool,
    /// The life of the state that reserved it, as its record says.
    pub epoch: u8,
}

/// The topic of claims: one partition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Topic {
    records: [u8; ATTEMPTS],
    end: u8,
}

impl Topic {
    /// The end offset.
    pub fn end(&self) -> u8 {
        self.end
    }

    /// The record at `offset`.
    pub fn at(&self, offset: u8) -> u8 {
        self.records[usize::from(offset)]
    }

    /// Appends; a record is stored once (the producer is idempotent).
    pub fn append(&mut self, attempt: u8) {
        self.records[usize::from(self.end)] = attempt;
        self.end += 1;
    }

    /// Offset and attempt of the records from `from` to before `to`.
    pub fn range(&self, from: u8, to: u8) -> impl Iterator<Item = (u8, u8)> {
        (from..to.max(from)).map(|offset| (offset, self.at(offset)))
    }

    /// Forgets the order of the records before `offset`.
    pub fn sort_before(&mut self, offset: u8) {
        self.records[..usize::from(offset)].sort_unstable();
    }

    /// Where an attempt's record is.
    pub fn offset_of(&self, attempt: u8) -> Option<u8> {
        (0..self.end).find(|&offset| self.at(offset) == attempt)
    }
}

/// What a user holds in Redis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Marker {
    /// Nothing.
    #[default]
    None,
    /// A slot, by this attempt's reservation.
    Held(u8),
    /// Nothing any more: the coupon of this attempt's request was canceled.
    Canceled(u8),
}

/// Whether a state is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Presence {
    /// No key.
    #[default]
    Missing,
    /// Built on this server.
    Here,
    /// An older copy, on another server than it was built on.
    OlderCopy,
}

/// The state in Redis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Redis {
    /// Whether it is there.
    pub presence: Presence,
    /// `status` is `rebuilding`.
    pub rebuilding: bool,
    /// The key of the count is missing, the others are there.
    pub count_missing: bool,
    /// `meta.epoch`.
    pub epoch: u8,
    /// What a rebuild stages.
    pub slots: Slots,
}

/// The part of the state that a rebuild stages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Slots {
    /// `meta.revision`.
    pub revision: u8,
    /// `meta.quantity`.
    pub quantity: u8,
    /// `occupied-count`.
    pub taken: u8,
    /// `users`.
    pub users: [Marker; USERS],
    /// `pending`.
    pub pending: Attempts,
    /// `pending-claims`: those of `pending` whose claim still holds a slot. `meta.pending` is their number.
    pub pending_claims: Attempts,
}

/// Postgres.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Postgres {
    /// `campaign.epoch`.
    pub epoch: u8,
    /// `epoch_cut`, by epoch.
    pub cuts: [Option<u8>; EPOCHS],
    /// `campaign.quantity`.
    pub quantity: u8,
    /// `campaign.revision`.
    pub revision: u8,
    /// `campaign.issued`.
    pub issued: u8,
    /// Attempts whose claim became a coupon.
    pub rows: Attempts,
    /// Of these, the canceled ones, whose slot goes back.
    pub canceled: Attempts,
    /// `batch`: decided as stored.
    pub stored: Attempts,
    /// `batch`: decided as abandoned.
    pub abandoned: Attempts,
    /// `batch`: decided as stale.
    pub stale: Attempts,
    /// `rejection`.
    pub rejected: Attempts,
    /// `consumed`.
    pub consumed: u8,
    /// `outbox`: cancels whose restock is not confirmed.
    pub outbox: Attempts,
}

/// A worker and the record it is at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Worker {
    /// Between two records.
    #[default]
    Idle,
    /// Has read the record at this offset.
    Read(u8),
    /// Mutated: has moved `consumed` past it.
    Moved(u8),
    /// Committed; this attempt is to be released.
    Release(u8),
    /// This attempt is to be settled.
    Settle(u8),
}

/// A sweeper and the batch it is at. One batch a sweep: steps of several do not depend on each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Sweeper {
    /// Between two sweeps.
    #[default]
    Idle,
    /// Mutated: has read the end offset first.
    EndFirst(u8),
    /// Has found the batch to be expired.
    Found(u8),
    /// Then, has read the end offset. With where the batch's record ends, if it lies before that: more of the end does not
    /// matter.
    End(u8, u8),
    /// It is in no record. With what was consumed, and whether its claim was found in `users`.
    Abandon(u8, u8, bool),
    /// To be released.
    Release(u8),
    /// To be settled.
    Settle(u8),
}

/// A step of a rebuild.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RebuildStep {
    /// None is under way.
    #[default]
    Idle,
    /// The epoch is raised.
    Raised,
    /// The door is shut. With the attempts that began before.
    Begun(Attempts),
    /// What is answered SUCCESS is in Kafka.
    Waited,
    /// The end offset is read.
    Cut(u8),
    /// Mutated: the rows are read, in a transaction of their own.
    Rows(u8),
    /// All is staged.
    Staged,
}

/// A rebuilder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rebuilder {
    /// Where it is.
    pub step: RebuildStep,
    /// Its epoch.
    pub epoch: u8,
    /// It has the lock, or did not notice that it lost it.
    pub locked: bool,
    /// The staging keys, which go with everything else in Redis.
    pub staged: Option<Slots>,
}

/// The relay and the cancel it is at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Relay {
    /// Between two rows.
    #[default]
    Idle,
    /// Has read the row of this attempt, then the epoch.
    Read(u8, u8),
    /// Redis has confirmed: the row is to be removed.
    Confirmed(u8),
}

/// What a writer of terms is at, with the row it has read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WriterStep {
    /// To begin (anew).
    #[default]
    Idle,
    /// Has read the row.
    Row,
    /// Redis has this newer revision: Postgres is to be raised past it.
    RaisePast(u8),
    /// Redis is to be configured as the row says.
    Align,
    /// The same, after the revision was raised: then everything is looked at anew.
    AlignRaised,
    /// Redis agrees; the change is to be made.
    Change,
    /// Redis has shrunk to this quantity: Postgres is to follow.
    ShrinkRow(u8),
    /// Mutated: Redis was raised, Postgres is to follow.
    GrowRow,
    /// Done, or dead.
    Done,
}

/// A writer of terms: one that applies a quantity, or the one that aligns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Writer {
    /// Where it is.
    pub step: WriterStep,
    /// The quantity it wants; 0: none, it only aligns.
    pub wanted: u8,
    /// From the row.
    pub quantity: u8,
    /// From the row.
    pub revision: u8,
    /// From the row.
    pub epoch: u8,
}

/// Everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// The attempts, by number.
    pub attempts: [Attempt; ATTEMPTS],
    /// Kafka.
    pub topic: Topic,
    /// Redis.
    pub redis: Redis,
    /// Postgres.
    pub postgres: Postgres,
    /// An older copy of Postgres.
    pub backup: Option<Postgres>,
    /// Batches whose abandonment went with that.
    pub lost: Attempts,
    /// Postgres was put back, and nobody has begun the rebuild that must follow.
    pub put_back: bool,
    /// The newest epoch ever given: the clock sees to it that a restore gives none again.
    pub newest_epoch: u8,
    /// Workers.
    pub workers: [Worker; PROCESSES],
    /// Sweepers.
    pub sweepers: [Sweeper; PROCESSES],
    /// Rebuilders.
    pub rebuilders: [Rebuilder; PROCESSES],
    /// The relay.
    pub relay: Relay,
    /// Writers of terms; the last one only aligns.
    pub writers: [Writer; WRITERS],
    /// Faults that may still happen.
    pub faults: u8,
    /// Cancels that may still happen.
    pub cancels: u8,
}
