//! Waits for a condition, with a limit, instead of sleeping.

use std::{
    fmt::Display,
    time::{Duration, Instant},
};

/// A look costs a run of kubectl.
const PAUSE: Duration = Duration::from_millis(300);

/// Looks until there is a value. An error is "not yet": the API server and the door may be away for a moment.
///
/// # Panics
/// With `what` and the last error in the text when there is none within `limit`.
pub async fn eventually<T, E: Display>(
    limit: Duration,
    what: impl Display,
    mut look: impl AsyncFnMut() -> Result<Option<T>, E>,
) -> T {
    let start = Instant::now();
    loop {
        let seen = look().await;
        let error = match seen {
            Ok(Some(value)) => return value,
            Ok(None) => None,
            Err(error) => Some(error),
        };
        if start.elapsed() >= limit {
            let error = error.map(|error| format!(" ({error})")).unwrap_or_default();
            panic!("not within {limit:?}: {what}{error}");
        }
        tokio::time::sleep(PAUSE).await;
    }
}
