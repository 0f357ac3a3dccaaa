//! Waiting for a condition, with a limit, instead of sleeping.

use std::{
    fmt::Display,
    time::{Duration, Instant},
};

/// What a polled condition says: `Some` or `true` ends the wait.
pub trait Outcome {
    /// What the wait gives back.
    type Value;

    /// `None`: not yet.
    fn outcome(self) -> Option<Self::Value>;
}

impl Outcome for bool {
    type Value = ();

    fn outcome(self) -> Option<()> {
        self.then_some(())
    }
}

impl<T> Outcome for Option<T> {
    type Value = T;

    fn outcome(self) -> Option<T> {
        self
    }
}

/// An error is "not yet": a server may be down while the condition is polled.
impl<T, E> Outcome for Result<Option<T>, E> {
    type Value = T;

    fn outcome(self) -> Option<T> {
        self.ok().flatten()
    }
}

/// Polls `condition` until it holds and gives its value.
///
/// # Panics
/// With `what` in the text when it does not hold within `limit`.
pub async fn eventually<O: Outcome>(
    limit: Duration,
    what: impl Display,
    mut condition: impl AsyncFnMut() -> O,
) -> O::Value {
    let start = Instant::now();
    let mut pause = Duration::from_millis(2);
    loop {
        if let Some(value) = condition().await.outcome() {
            return value;
        }
        assert!(start.elapsed() < limit, "not within {limit:?}: {what}");
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}
