//! The scripts of `lua/`. Each runs by its hash and is loaded where the server answers NOSCRIPT; only then it is sent
//! again.

use std::{borrow::Cow, sync::LazyLock};

use crate::mutant;

/// A script with what goes before it.
pub(super) struct Script {
    /// The transition, as errors call it.
    pub(super) name: &'static str,
    source: LazyLock<Cow<'static, str>>,
    hash: LazyLock<String>,
}

impl Script {
    /// What EVAL wants.
    pub(super) fn source(&self) -> &str {
        &self.source
    }

    /// What EVALSHA wants.
    pub(super) fn hash(&self) -> &str {
        &self.hash
    }
}

macro_rules! scripts {
    ($($constant:ident $name:literal)*) => {
        $(pub(super) static $constant: Script = {
            const SOURCE: &str = concat!(
                include_str!("../../../lua/prelude.lua"),
                include_str!(concat!("../../../lua/", $name, ".lua")),
            );
            Script {
                name: $name,
                source: LazyLock::new(|| mutant::lua::script($name, SOURCE)),
                hash: LazyLock::new(|| ::redis::Script::new($constant.source()).get_hash().to_owned()),
            }
        };)*
    };
}

scripts! {
    RESERVE "reserve"
    RELEASE "release"
    SETTLE "settle"
    RESTOCK "restock"
    CONFIGURE "configure"
    STATE "state"
    MARKER "marker"
    EXPIRED "expired"
    SCAN_CLAIMS "scan_claims"
    REMOVE "remove"
    REBUILD_BEGIN "rebuild_begin"
    REBUILD_APPEND "rebuild_append"
    REBUILD_COMMIT "rebuild_commit"
    LOCK_ACQUIRE "lock_acquire"
    LOCK_RENEW "lock_renew"
    LOCK_RELEASE "lock_release"
    LIMIT_ACQUIRE "limit_acquire"
    LIMIT_SET_RATE "limit_set_rate"
    LIMIT_STORED_RATE "limit_stored_rate"
}
