//! What users do. Drawn, not scripted: a share of them clicks twice, a share hangs up and asks again.

use std::time::Duration;

/// What one user does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behaviour {
    /// Claims and waits for the answer.
    ClicksOnce,
    /// Claims twice at the same time.
    ClicksTwice,
    /// Drops the connection before the answer came, then asks again with the same key.
    HangsUp,
}

/// How many users do what.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mix {
    /// Share of users who click twice, 0 to 1.
    pub double_click: f64,
    /// Share of users who hang up, 0 to 1.
    pub hang_up: f64,
}

/// Why shares are not shares.
#[derive(Debug, thiserror::Error, PartialEq)]
#[error("--double-click {double_click} and --hang-up {hang_up} must be from 0 to 1, and at most 1 together")]
pub struct MixError {
    double_click: f64,
    hang_up: f64,
}

/// Users hang up within this long: sometimes before the request is out, mostly while the door is at it.
const HANG_UP_WITHIN: Duration = Duration::from_millis(5);

impl Mix {
    /// Refuses what is no share.
    pub fn new(double_click: f64, hang_up: f64) -> Result<Self, MixError> {
        let share = 0.0..=1.0;
        if share.contains(&double_click) && share.contains(&hang_up) && double_click + hang_up <= 1.0 {
            Ok(Self { double_click, hang_up })
        } else {
            Err(MixError { double_click, hang_up })
        }
    }

    /// The behaviour for a draw from 0 to 1.
    pub fn behaviour(&self, draw: f64) -> Behaviour {
        if draw < self.double_click {
            Behaviour::ClicksTwice
        } else if draw < self.double_click + self.hang_up {
            Behaviour::HangsUp
        } else {
            Behaviour::ClicksOnce
        }
    }
}

/// When a user hangs up, for a draw from 0 to 1.
pub fn patience(draw: f64) -> Duration {
    HANG_UP_WITHIN.mul_f64(draw.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_fall_into_the_shares() {
        let mix = Mix::new(0.1, 0.2).expect("shares");
        for (draw, behaviour) in [
            (0.0, Behaviour::ClicksTwice),
            (0.09, Behaviour::ClicksTwice),
            (0.1, Behaviour::HangsUp),
            (0.29, Behaviour::HangsUp),
            (0.31, Behaviour::ClicksOnce),
            (0.99, Behaviour::ClicksOnce),
        ] {
            assert_eq!(mix.behaviour(draw), behaviour, "{draw}");
        }
    }

    #[test]
    fn what_is_no_share_is_refused() {
        for (double_click, hang_up) in [(-0.1, 0.0), (0.0, 1.1), (0.6, 0.6), (f64::NAN, 0.0)] {
            assert!(Mix::new(double_click, hang_up).is_err(), "{double_click} {hang_up}");
        }
        assert!(Mix::new(0.5, 0.5).is_ok());
    }
}
