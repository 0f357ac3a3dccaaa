//! Shows how far a load is: a bar on a terminal, plain lines elsewhere.

use std::{
    io::IsTerminal,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};
use tokio_util::sync::{CancellationToken, DropGuard};

const REDRAW: Duration = Duration::from_millis(100);
const LINE: Duration = Duration::from_secs(2);
const TEMPLATE: &str = "{bar:40.cyan/blue} {pos}/{len} users  {per_sec}  {msg}  {elapsed}";

/// Counted by the connections.
#[derive(Debug, Default)]
pub struct Counters {
    /// Users who are done.
    pub users: AtomicU64,
    /// Of these, those with a coupon.
    pub successes: AtomicU64,
}

/// Shows `counters` until it is dropped.
pub struct Progress {
    _stop: DropGuard,
}

impl Progress {
    /// Begins.
    pub fn show(counters: Arc<Counters>, users: u64) -> Self {
        let stop = CancellationToken::new();
        let ended = stop.clone();
        if std::io::stderr().is_terminal() {
            tokio::spawn(draw(counters, users, ended));
        } else {
            tokio::spawn(write_lines(counters, users, ended));
        }
        Self {
            _stop: stop.drop_guard(),
        }
    }
}

async fn draw(counters: Arc<Counters>, users: u64, ended: CancellationToken) {
    let style = ProgressStyle::with_template(TEMPLATE).unwrap_or_else(|_| ProgressStyle::default_bar());
    let bar = ProgressBar::new(users).with_style(style);
    loop {
        bar.set_position(counters.users.load(Ordering::Relaxed));
        bar.set_message(format!("SUCCESS {}", counters.successes.load(Ordering::Relaxed)));
        tokio::select! {
            () = ended.cancelled() => break,
            () = tokio::time::sleep(REDRAW) => {}
        }
    }
    bar.set_position(counters.users.load(Ordering::Relaxed));
    bar.abandon();
}

async fn write_lines(counters: Arc<Counters>, users: u64, ended: CancellationToken) {
    let begin = Instant::now();
    loop {
        tokio::select! {
            () = ended.cancelled() => break,
            () = tokio::time::sleep(LINE) => {}
        }
        eprintln!(
            "  {:>5.1} s  {} of {users} users, SUCCESS {}",
            begin.elapsed().as_secs_f64(),
            counters.users.load(Ordering::Relaxed),
            counters.successes.load(Ordering::Relaxed)
        );
    }
}
