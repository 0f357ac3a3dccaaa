//! Waits for servers that are still starting.

use std::{
    fmt,
    future::Future,
    time::{Duration, Instant},
};

const PAUSE: Duration = Duration::from_millis(500);

/// Tries until it succeeds or `within` is over; at least once. The last error is the answer.
pub async fn try_within<T, E, F>(within: Duration, mut attempt: impl FnMut() -> F) -> Result<T, E>
where
    E: fmt::Display,
    F: Future<Output = Result<T, E>>,
{
    let deadline = Instant::now() + within;
    let mut said = String::new();
    loop {
        match attempt().await {
            Err(error) if Instant::now() + PAUSE < deadline => {
                // Two tries a second: only what is new is worth a line.
                let error = error.to_string();
                if error != said {
                    tracing::warn!(error, "not yet, trying again");
                    said = error;
                }
                tokio::time::sleep(PAUSE).await;
            }
            decided => return decided,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[tokio::test]
    async fn it_tries_until_it_succeeds_or_the_time_is_over() {
        for (within, succeeds_at, expected) in [(0, 1, Ok(1)), (0, 2, Err(1)), (60, 3, Ok(3))] {
            let tries = Cell::new(0);
            let outcome = try_within(Duration::from_secs(within), || {
                tries.set(tries.get() + 1);
                let tried = tries.get();
                async move { if tried >= succeeds_at { Ok(tried) } else { Err(tried) } }
            })
            .await;
            assert_eq!(outcome, expected, "within {within} s");
        }
    }
}
