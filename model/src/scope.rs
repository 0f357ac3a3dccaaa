//! What is explored: how many of everything, and what may go wrong.

/// A claim of a client: one attempt of it, or the repetition of an earlier one.
#[derive(Clone, Copy, Debug)]
pub struct Claim {
    /// Whose.
    pub user: u8,
    /// Same user and key: the same request.
    pub key: u8,
    /// The attempt that has begun before: an earlier one of the same user, or one of a user who is no different (so that
    /// each situation is looked at once, not once for each order of like users).
    pub after: Option<u8>,
}

/// Something that breaks. Each costs one of the scope's faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// An intake dies between two steps.
    IntakeDies,
    /// A worker dies after its commit.
    WorkerDies,
    /// A sweeper dies after its transaction.
    SweeperDies,
    /// A rebuilder dies.
    RebuilderDies,
    /// A rebuilder loses its lock and goes on.
    RebuilderLosesLock,
    /// The relay dies between Redis' confirmation and the removal of the row.
    RelayDies,
    /// A writer of terms dies.
    WriterDies,
    /// Redis is empty.
    Flush,
    /// An older copy of Redis takes over, without its last write.
    OlderCopy,
    /// One key of the state is lost.
    KeyLost,
    /// Postgres is put back to an older copy.
    PutBack,
}

/// A situation that the exploration must come to, so that it proves something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Situation {
    /// All slots are issued and everything is quiet.
    SoldOut,
    /// A claim that is in Kafka only was taken over into a new life of the state.
    TakenOver,
    /// A batch was abandoned.
    Abandoned,
    /// A batch was abandoned, and its record came after all.
    AbandonedThenStored,
    /// A record came after a later epoch's cut.
    Stale,
    /// Another user has the slot of a canceled coupon.
    Restocked,
    /// The same key was told SUCCESS for what an earlier attempt reserved.
    Repeated,
    /// A second attempt of a request became its coupon.
    SecondAttempt,
    /// A quantity was raised, and used.
    Raised,
    /// A quantity was shrunk.
    Shrunk,
    /// A later rebuild overtook an earlier one.
    Overtaken,
    /// Rows came back from Kafka after Postgres was put back.
    CameBack,
}

/// What is explored.
#[derive(Clone, Copy, Debug)]
pub struct Scope {
    /// Its name.
    pub name: &'static str,
    /// The claims, by attempt.
    pub claims: &'static [Claim],
    /// Coupons at the beginning.
    pub quantity: u8,
    /// How many faults may happen.
    pub faults: u8,
    /// Of which kinds.
    pub kinds: &'static [Fault],
    /// How many workers.
    pub workers: u8,
    /// How many sweepers: more than one as after a lost lock.
    pub sweepers: u8,
    /// How many rebuilders.
    pub rebuilders: u8,
    /// How many cancels.
    pub cancels: u8,
    /// Every record is stored and acknowledged, sooner or later: for scopes about something else.
    pub stored: bool,
    /// Quantities that are applied, each by a writer of its own.
    pub terms: &'static [u8],
    /// What must be come to.
    pub situations: &'static [Situation],
}

const fn claim(user: u8, key: u8, after: Option<u8>) -> Claim {
    Claim { user, key, after }
}

const TWO_USERS: &[Claim] = &[claim(0, 0, None), claim(1, 0, Some(0))];
const THREE_USERS: &[Claim] = &[claim(0, 0, None), claim(1, 0, Some(0)), claim(2, 0, Some(1))];
/// The second attempt repeats the first one's key.
const REPEATED_KEY: &[Claim] = &[claim(0, 0, None), claim(0, 0, Some(0)), claim(1, 0, None)];
/// One user with two keys.
const TWO_KEYS: &[Claim] = &[claim(0, 0, None), claim(0, 1, Some(0))];

const NOTHING: Scope = Scope {
    name: "",
    claims: TWO_USERS,
    quantity: 1,
    faults: 2,
    kinds: &[],
    workers: 1,
    sweepers: 1,
    rebuilders: 0,
    cancels: 0,
    stored: false,
    terms: &[],
    situations: &[],
};

/// Claims, published and swept, with intakes, workers and sweepers that die.
pub const CLAIMS: Scope = Scope {
    name: "claims",
    claims: REPEATED_KEY,
    kinds: &[Fault::IntakeDies, Fault::WorkerDies, Fault::SweeperDies],
    situations: &[
        Situation::SoldOut,
        Situation::Abandoned,
        Situation::AbandonedThenStored,
        Situation::Repeated,
        Situation::SecondAttempt,
    ],
    ..NOTHING
};

/// Three users for two coupons, one of which gets none.
pub const CROWD: Scope = Scope {
    name: "crowd",
    claims: THREE_USERS,
    quantity: 2,
    faults: 1,
    situations: &[Situation::SoldOut, Situation::Abandoned],
    ..CLAIMS
};

/// Two sweepers, of which one has lost its lock, and a user with two keys.
pub const TWO_SWEEPERS: Scope = Scope {
    name: "two_sweepers",
    claims: TWO_KEYS,
    kinds: &[Fault::SweeperDies],
    sweepers: 2,
    situations: &[Situation::Abandoned, Situation::AbandonedThenStored],
    ..NOTHING
};

/// Two workers that read the same records.
pub const TWO_WORKERS: Scope = Scope {
    name: "two_workers",
    claims: REPEATED_KEY,
    kinds: &[Fault::WorkerDies],
    faults: 1,
    workers: 2,
    situations: &[Situation::SoldOut, Situation::AbandonedThenStored],
    ..NOTHING
};

/// Redis loses all or some of its writes.
pub const REBUILD: Scope = Scope {
    name: "rebuild",
    claims: REPEATED_KEY,
    faults: 1,
    kinds: &[Fault::Flush, Fault::OlderCopy, Fault::KeyLost],
    rebuilders: 1,
    situations: &[
        Situation::SoldOut,
        Situation::TakenOver,
        Situation::Stale,
        Situation::Repeated,
        Situation::SecondAttempt,
    ],
    ..NOTHING
};

/// Redis loses its writes twice, or the rebuilder dies, or another one starts while it goes on.
pub const TWO_REBUILDERS: Scope = Scope {
    name: "two_rebuilders",
    kinds: &[Fault::Flush, Fault::RebuilderDies, Fault::RebuilderLosesLock],
    rebuilders: 2,
    situations: &[Situation::TakenOver, Situation::Stale, Situation::Overtaken],
    ..NOTHING
};

/// A coupon is canceled, and somebody else gets its slot.
pub const CANCEL: Scope = Scope {
    name: "cancel",
    kinds: &[Fault::Flush, Fault::RebuilderDies, Fault::RelayDies],
    rebuilders: 1,
    cancels: 1,
    situations: &[Situation::Restocked, Situation::TakenOver],
    ..NOTHING
};

/// The quantity grows while it is claimed.
pub const RAISE: Scope = Scope {
    name: "raise",
    faults: 1,
    kinds: &[Fault::Flush, Fault::WriterDies],
    rebuilders: 1,
    stored: true,
    terms: &[2],
    situations: &[Situation::Raised, Situation::TakenOver],
    ..NOTHING
};

/// The quantity shrinks while it is claimed.
pub const SHRINK: Scope = Scope {
    name: "shrink",
    quantity: 2,
    terms: &[1],
    situations: &[Situation::Shrunk, Situation::TakenOver],
    ..RAISE
};

/// Two writers want different quantities.
pub const TWO_WRITERS: Scope = Scope {
    name: "two_writers",
    quantity: 3,
    faults: 1,
    kinds: &[Fault::WriterDies],
    sweepers: 0,
    stored: true,
    terms: &[1, 2],
    situations: &[Situation::Shrunk],
    ..NOTHING
};

/// Postgres is put back to an older copy.
pub const PUT_BACK: Scope = Scope {
    name: "put_back",
    faults: 1,
    kinds: &[Fault::PutBack],
    rebuilders: 1,
    situations: &[Situation::CameBack],
    ..NOTHING
};

/// All scopes.
pub const ALL: &[&Scope] = &[
    &CLAIMS,
    &CROWD,
    &TWO_SWEEPERS,
    &TWO_WORKERS,
    &REBUILD,
    &TWO_REBUILDERS,
    &CANCEL,
    &RAISE,
    &SHRINK,
    &TWO_WRITERS,
    &PUT_BACK,
];
