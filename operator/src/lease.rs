//! Which replica leads: a `Lease` of `coordination.k8s.io` that its holder renews.
//!
//! No clock of another machine is trusted: a candidate takes the lease over when it has not *seen* it change for its
//! whole duration. The leader stops leading before that: when it could not renew for two thirds of it.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
};
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams},
};

/// How an election runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// How long a lease holds that nobody renews; whole seconds in the lease itself.
    pub duration: Duration,
    /// How long the leader leads without having renewed.
    pub renew_limit: Duration,
    /// Between two renewals, and between two looks of a candidate.
    pub interval: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            duration: Duration::from_secs(9),
            renew_limit: Duration::from_secs(6),
            interval: Duration::from_secs(1),
        }
    }
}

/// What to do about the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// There is none: make it ours.
    Create,
    /// It is ours: renew it.
    Renew,
    /// Its holder gave it up or has not been seen for its duration: take it.
    Take,
    /// Somebody leads.
    Wait,
}

/// What a candidate saw of the lease, by its own clock.
#[derive(Clone, Debug, Default)]
pub struct Sightings {
    last: Option<(Option<String>, Option<MicroTime>, Instant)>,
}

impl Sightings {
    /// How long this very lease has been seen unchanged.
    fn unchanged_for(&mut self, spec: &LeaseSpec, now: Instant) -> Duration {
        match &self.last {
            Some((holder, renewed, since)) if *holder == spec.holder_identity && *renewed == spec.renew_time => {
                now.duration_since(*since)
            }
            _ => {
                self.last = Some((spec.holder_identity.clone(), spec.renew_time.clone(), now));
                Duration::ZERO
            }
        }
    }

    /// What `me` does about the lease as it is now; it holds for `duration`.
    pub fn decide(&mut self, lease: Option<&LeaseSpec>, me: &str, duration: Duration, now: Instant) -> Decision {
        let Some(spec) = lease else {
            return Decision::Create;
        };
        let holder = spec.holder_identity.as_deref().unwrap_or_default();
        let unchanged_for = self.unchanged_for(spec, now);
        if holder == me {
            Decision::Renew
        } else if holder.is_empty() || unchanged_for >= duration {
            Decision::Take
        } else {
            Decision::Wait
        }
    }
}

/// The lease as `me` writes it.
pub fn written(
    lease: Option<&LeaseSpec>,
    me: &str,
    decision: Decision,
    duration: Duration,
    now: Timestamp,
) -> LeaseSpec {
    let before = lease.cloned().unwrap_or_default();
    let renewed = decision == Decision::Renew;
    LeaseSpec {
        holder_identity: Some(me.to_owned()),
        lease_duration_seconds: i32::try_from(duration.as_secs().max(1)).ok(),
        acquire_time: if renewed {
            before.acquire_time
        } else {
            Some(MicroTime(now))
        },
        renew_time: Some(MicroTime(now)),
        // Anybody may have written anything there.
        lease_transitions: Some(
            before
                .lease_transitions
                .unwrap_or(0)
                .saturating_add(i32::from(decision == Decision::Take)),
        ),
        ..LeaseSpec::default()
    }
}

/// Why the lease could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    /// The API server.
    #[error("the lease {name} cannot be read or written: {source}")]
    Api {
        /// Which one.
        name: String,
        /// As the API server put it.
        source: kube::Error,
    },
    /// No answer in time.
    #[error("the API server did not answer about the lease {0} within {1:?}")]
    Late(String, Duration),
}

/// Stands for election.
#[derive(Clone)]
pub struct Election {
    api: Api<Lease>,
    name: String,
    me: String,
    timing: Timing,
}

impl Election {
    /// With the lease `name` in `namespace`; `me` must be another one in every replica and after every start.
    pub fn new(client: Client, namespace: &str, name: &str, me: &str, timing: Timing) -> Self {
        Self {
            timing,
            api: Api::namespaced(client, namespace),
            name: name.to_owned(),
            me: me.to_owned(),
        }
    }

    /// Resolves when this replica leads. `answered` is told of every answer of the API server.
    pub async fn win(&self, answered: impl Fn()) -> Instant {
        let mut sightings = Sightings::default();
        loop {
            let began = Instant::now();
            match self.within(self.timing.renew_limit, self.step(&mut sightings)).await {
                Ok(leads) => {
                    answered();
                    if leads {
                        return began;
                    }
                }
                Err(error) => tracing::warn!(%error, "election goes on"),
            }
            tokio::time::sleep(self.timing.interval).await;
        }
    }

    /// Renews what was won at `renewed`; resolves when this replica does not lead any more.
    pub async fn keep(&self, mut renewed: Instant, answered: impl Fn()) {
        let mut sightings = Sightings::default();
        loop {
            let left = self.timing.renew_limit.saturating_sub(renewed.elapsed());
            if left.is_zero() {
                tracing::error!(lease = self.name, "could not renew: stops leading");
                return;
            }
            tokio::time::sleep(self.timing.interval.min(left)).await;
            // The lease holds from before the request, not from its answer on.
            let began = Instant::now();
            let left = self
                .timing
                .renew_limit
                .saturating_sub(renewed.elapsed())
                .max(Duration::from_millis(1));
            match self.within(left, self.step(&mut sightings)).await {
                Ok(true) => {
                    answered();
                    renewed = began;
                }
                Ok(false) => {
                    tracing::error!(lease = self.name, "another replica leads: stops leading");
                    return;
                }
                Err(error) => tracing::warn!(%error, "renewal is tried again"),
            }
        }
    }

    /// Gives the lease up, so that another replica need not wait.
    pub async fn resign(&self) {
        let giving_up = async {
            let Some(mut lease) = self.api.get_opt(&self.name).await? else {
                return Ok(());
            };
            let Some(spec) = &mut lease.spec else { return Ok(()) };
            if spec.holder_identity.as_deref() == Some(&self.me) {
                spec.holder_identity = Some(String::new());
                self.api.replace(&self.name, &PostParams::default(), &lease).await?;
            }
            Ok(())
        };
        if let Err(error) = self.within(self.timing.interval, giving_up).await {
            tracing::warn!(%error, "the lease runs out by itself");
        }
    }

    async fn within<T>(
        &self,
        limit: Duration,
        step: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, LeaseError> {
        match tokio::time::timeout(limit, step).await {
            Ok(result) => result.map_err(|source| LeaseError::Api {
                name: self.name.clone(),
                source,
            }),
            Err(_) => Err(LeaseError::Late(self.name.clone(), limit)),
        }
    }

    /// Looks once and does what is to be done; whether this replica leads now.
    async fn step(&self, sightings: &mut Sightings) -> Result<bool, kube::Error> {
        let lease = self.api.get_opt(&self.name).await?;
        let spec = lease.as_ref().and_then(|lease| lease.spec.as_ref());
        // A lease without a spec is nobody's.
        let nobody = LeaseSpec::default();
        let seen = if lease.is_some() {
            Some(spec.unwrap_or(&nobody))
        } else {
            None
        };
        let decision = sightings.decide(seen, &self.me, self.timing.duration, Instant::now());
        let next = written(spec, &self.me, decision, self.timing.duration, Timestamp::now());
        let written = match (decision, lease) {
            (Decision::Wait, _) => return Ok(false),
            (_, None) => {
                let lease = Lease {
                    metadata: ObjectMeta {
                        name: Some(self.name.clone()),
                        ..ObjectMeta::default()
                    },
                    spec: Some(next),
                };
                self.api.create(&PostParams::default(), &lease).await
            }
            // The resource version of what was read goes along: whoever was faster wins.
            (_, Some(read)) => {
                let lease = Lease {
                    spec: Some(next),
                    ..read
                };
                self.api.replace(&self.name, &PostParams::default(), &lease).await
            }
        };
        match written {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(status)) if status.is_conflict() || status.is_already_exists() => Ok(false),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(holder: &str, renewed_at: i64) -> LeaseSpec {
        LeaseSpec {
            holder_identity: Some(holder.to_owned()),
            lease_duration_seconds: Some(9),
            renew_time: Some(MicroTime(Timestamp::from_second(renewed_at).expect("time"))),
            lease_transitions: Some(3),
            ..LeaseSpec::default()
        }
    }

    #[test]
    fn a_lease_is_taken_over_only_when_it_has_not_changed_for_its_duration() {
        let start = Instant::now();
        for (what, seen, decision) in [
            ("none", vec![(0, None)], Decision::Create),
            ("ours", vec![(0, Some(lease("me", 1)))], Decision::Renew),
            ("given up", vec![(0, Some(lease("", 1)))], Decision::Take),
            // Whatever its renew time says: it may be another clock's.
            (
                "seen for the first time",
                vec![(0, Some(lease("other", 1)))],
                Decision::Wait,
            ),
            (
                "not long enough",
                vec![(0, Some(lease("other", 1))), (8, Some(lease("other", 1)))],
                Decision::Wait,
            ),
            (
                "long enough",
                vec![(0, Some(lease("other", 1))), (9, Some(lease("other", 1)))],
                Decision::Take,
            ),
            (
                "renewed in between",
                vec![
                    (0, Some(lease("other", 1))),
                    (8, Some(lease("other", 2))),
                    (16, Some(lease("other", 2))),
                ],
                Decision::Wait,
            ),
            (
                "another leader in between",
                vec![
                    (0, Some(lease("other", 1))),
                    (8, Some(lease("third", 1))),
                    (16, Some(lease("third", 1))),
                ],
                Decision::Wait,
            ),
        ] {
            let mut sightings = Sightings::default();
            let last = seen
                .iter()
                .map(|(second, lease)| {
                    sightings.decide(
                        lease.as_ref(),
                        "me",
                        Timing::default().duration,
                        start + Duration::from_secs(*second),
                    )
                })
                .last();
            assert_eq!(last, Some(decision), "{what}");
        }
    }

    #[test]
    fn a_killed_leader_is_followed_within_fifteen_seconds_and_stops_before() {
        let timing = Timing::default();
        // Seen first just before the kill at the latest, then looked at in every interval.
        assert!(timing.duration + timing.interval * 2 < Duration::from_secs(15));
        // The old one has stopped before the new one begins, also when its last look took a whole interval.
        assert!(timing.renew_limit + timing.interval < timing.duration);
    }

    #[test]
    fn the_transitions_count_changes_of_the_leader() {
        let now = Timestamp::from_second(100).expect("time");
        let before = lease("other", 1);
        for (decision, transitions, acquired) in [(Decision::Take, 4, true), (Decision::Renew, 3, false)] {
            let spec = written(Some(&before), "me", decision, Timing::default().duration, now);
            assert_eq!(spec.lease_transitions, Some(transitions));
            assert_eq!(spec.acquire_time.is_some(), acquired);
            assert_eq!(
                (spec.holder_identity.as_deref(), spec.renew_time),
                (Some("me"), Some(MicroTime(now)))
            );
        }
        let damaged = LeaseSpec {
            lease_transitions: Some(i32::MAX),
            ..before
        };
        let spec = written(Some(&damaged), "me", Decision::Take, Timing::default().duration, now);
        assert_eq!(spec.lease_transitions, Some(i32::MAX), "a damaged lease is taken, too");
        let created = written(None, "me", Decision::Create, Timing::default().duration, now);
        assert_eq!(
            (created.lease_transitions, created.lease_duration_seconds),
            (Some(0), Some(9))
        );
    }
}
