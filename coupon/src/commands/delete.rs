//! `coupon delete NAME`

use std::time::Duration;

use campaign::{
    align::deletion::{Deletion, Undrained},
    manifest::DeletionPolicy,
    name::CampaignName,
    postgres::deletion::EndedCampaign,
};

use crate::connections::InstallationArguments;

/// What to delete, and where.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// `name` or `namespace/name`.
    name: String,
    /// Whether the next apply of the name goes on with the campaign, or the name is free for another one.
    #[arg(long, value_enum, default_value = "retain")]
    policy: Policy,
    /// How long claims that are on their way may take to become coupons.
    #[arg(long, default_value = "60s", value_parser = humantime::parse_duration)]
    drain_limit: Duration,
    #[command(flatten)]
    installation: InstallationArguments,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Policy {
    /// Applied again, it goes on: holders stay holders.
    Retain,
    /// It is archived; applied again, the name is another campaign.
    Delete,
}

impl Policy {
    fn of_the_campaign(self) -> DeletionPolicy {
        match self {
            Self::Retain => DeletionPolicy::Retain,
            Self::Delete => DeletionPolicy::Delete,
        }
    }

    fn done(self) -> &'static str {
        match self {
            Self::Retain => "retired",
            Self::Delete => "archived",
        }
    }
}

/// Why it is not deleted.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum NotDeleted {
    #[error("{name} is paused but not {done}: {undrained} after {limit:?}; is a worker running? try again")]
    Undrained {
        name: CampaignName,
        done: &'static str,
        undrained: Undrained,
        limit: Duration,
    },
    #[error("there is no campaign {0} to delete; `coupon campaigns` lists those that there are")]
    Unknown(CampaignName),
}

/// Shuts the door, waits until no claim is on its way (a SUCCESS is never taken back), then retires or archives.
pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let connections = arguments.installation.connect().await?;
    let name = CampaignName::parse(&arguments.name, &connections.installation.namespace)?;
    let (policy, limit) = (arguments.policy, arguments.drain_limit);
    let deletion = connections
        .aligner
        .delete(&name, policy.of_the_campaign(), limit)
        .await?;
    let ended = connections.database.ended_campaign(&name).await?;
    println!("{}", outcome(name, policy, limit, deletion, ended)?);
    Ok(())
}

/// One line about what happened; `ended`: what has the name in Postgres and is not live.
fn outcome(
    name: CampaignName,
    policy: Policy,
    limit: Duration,
    deletion: Deletion,
    ended: Option<EndedCampaign>,
) -> Result<String, NotDeleted> {
    let done = policy.done();
    match (deletion, ended) {
        (Deletion::Done(_), _) => Ok(format!("{name} is {done}; its coupons stay valid")),
        (Deletion::Draining(undrained), _) => Err(NotDeleted::Undrained {
            name,
            done,
            undrained,
            limit,
        }),
        (Deletion::NotLive, Some(ended)) => {
            let was = if ended.archived { Policy::Delete } else { Policy::Retain };
            Ok(format!("{name} was {} before; its coupons stay valid", was.done()))
        }
        (Deletion::NotLive, None) => Err(NotDeleted::Unknown(name)),
    }
}

#[cfg(test)]
mod tests {
    use campaign::identity::CampaignId;

    use super::*;

    #[test]
    fn what_is_ended_is_told_and_what_never_was_is_an_error() {
        let id = CampaignId(uuid::Uuid::nil());
        let ended = |archived| Some(EndedCampaign { id, archived });
        for (policy, deletion, ended, says) in [
            (
                Policy::Retain,
                Deletion::Done(id),
                ended(false),
                Ok("shop/sale is retired; "),
            ),
            (
                Policy::Delete,
                Deletion::Done(id),
                ended(true),
                Ok("shop/sale is archived; "),
            ),
            (
                Policy::Retain,
                Deletion::NotLive,
                ended(false),
                Ok("shop/sale was retired before; "),
            ),
            (
                Policy::Delete,
                Deletion::NotLive,
                ended(true),
                Ok("shop/sale was archived before; "),
            ),
            (
                Policy::Delete,
                Deletion::NotLive,
                None,
                Err("there is no campaign shop/sale to delete; `coupon campaigns`"),
            ),
            (
                Policy::Retain,
                Deletion::Draining(Undrained::Claims(3)),
                None,
                Err("shop/sale is paused but not retired: 3 claims are on their way after 60s"),
            ),
        ] {
            let name = CampaignName::parse("sale", "shop").expect("valid");
            let told =
                outcome(name, policy, Duration::from_secs(60), deletion, ended).map_err(|error| error.to_string());
            let (told, says) = match (&told, says) {
                (Ok(told), Ok(says)) | (Err(told), Err(says)) => (told, says),
                _ => panic!("{policy:?} {deletion:?}: {told:?}"),
            };
            assert!(told.starts_with(says), "{policy:?} {deletion:?}: {told}");
        }
    }
}
