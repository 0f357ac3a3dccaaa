//! Table `coupon_activity`: the projection of `coupon.lifecycle`.

use super::{
    database::Database,
    persist::{Advance, PersistError},
};
use crate::event::LifecycleEvent;

impl Database {
    /// Inserts events (repeats are dropped by their id) and moves `consumed`, in one transaction. Answers how many were new.
    pub async fn project(
        &self,
        topic: &str,
        events: &[LifecycleEvent],
        advances: &[Advance],
    ) -> Result<u64, PersistError> {
        let _ = (topic, events, advances);
        unimplemented!()
    }
}
