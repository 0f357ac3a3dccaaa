//! Flags of which one must know whether somebody gave them.

use campaign::settings::{KafkaSettings, PostgresSettings, RedisSettings};
use clap::{ArgMatches, Args, Command, FromArgMatches, parser::ValueSource};

/// The flags of a server, one of which says where it is.
pub trait ServerFlags: Args {
    /// The id of that flag.
    const ADDRESS: &'static str;
}

impl ServerFlags for RedisSettings {
    const ADDRESS: &'static str = "redis_urls";
}

impl ServerFlags for KafkaSettings {
    const ADDRESS: &'static str = "kafka_brokers";
}

impl ServerFlags for PostgresSettings {
    const ADDRESS: &'static str = "postgres_url";
}

/// Settings of a server that may be somewhere already.
#[derive(Clone, Debug)]
pub struct Given<T> {
    /// The settings, with defaults where nothing was given.
    pub settings: T,
    /// Whether its address came from the command line or the environment.
    pub address: bool,
}

impl<T: ServerFlags> FromArgMatches for Given<T> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Self::from_arg_matches_mut(&mut matches.clone())
    }

    fn from_arg_matches_mut(matches: &mut ArgMatches) -> Result<Self, clap::Error> {
        let address = matches
            .value_source(T::ADDRESS)
            .is_some_and(|source| source != ValueSource::DefaultValue);
        Ok(Self {
            settings: T::from_arg_matches_mut(matches)?,
            address,
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl<T: ServerFlags> Args for Given<T> {
    fn augment_args(command: Command) -> Command {
        T::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        T::augment_args_for_update(command)
    }
}

/// Settings as they are when no flag is given: from the environment, or the defaults.
pub fn without_flags<T: Args>() -> Result<T, clap::Error> {
    let matches = T::augment_args(Command::new("defaults")).try_get_matches_from(["defaults"])?;
    T::from_arg_matches(&matches)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Servers {
        #[command(flatten)]
        redis: Given<RedisSettings>,
        #[command(flatten)]
        kafka: Given<KafkaSettings>,
        #[command(flatten)]
        postgres: Given<PostgresSettings>,
    }

    #[test]
    fn an_address_is_given_only_when_somebody_gave_it() {
        for (flags, given) in [
            (&[][..], [false, false, false]),
            (&["--redis-url", "redis://r:1"][..], [true, false, false]),
            (&["--kafka-brokers", "k:1"][..], [false, true, false]),
            (&["--postgres-pool", "3"][..], [false, false, false]),
            (
                &["--postgres-url", "postgres://p/d", "--postgres-pool", "3"][..],
                [false, false, true],
            ),
        ] {
            let parsed = Servers::parse_from([&["test"][..], flags].concat());
            let seen = [parsed.redis.address, parsed.kafka.address, parsed.postgres.address];
            assert_eq!(seen, given, "{flags:?}");
        }
    }
}
