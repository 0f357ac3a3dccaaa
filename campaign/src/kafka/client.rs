//! Client properties and the one error of this module.

use rdkafka::{ClientConfig, Statistics};

use crate::settings::KafkaSettings;

/// What went wrong with Kafka.
#[derive(Debug, thiserror::Error)]
pub enum KafkaError {
    /// The brokers cannot be reached or did not answer: unknown, not empty.
    #[error("Kafka could not {what}: {reason}; check that the brokers are reachable")]
    Unavailable {
        /// What was tried.
        what: String,
        /// As the client put it.
        reason: String,
    },
    /// Refused at start: a topic is missing or set so that the promise cannot hold, or a property is wrong.
    #[error("{0}")]
    Unsuitable(String),
}

impl KafkaError {
    pub(super) fn unavailable(what: impl Into<String>, reason: impl ToString) -> Self {
        Self::Unavailable {
            what: what.into(),
            reason: reason.to_string(),
        }
    }
}

/// What the promise rests on: a free property must not change it.
const FIXED: [&str; 11] = [
    "acks",
    "request.required.acks",
    "enable.idempotence",
    "enable.gapless.guarantee",
    "message.timeout.ms",
    "delivery.timeout.ms",
    "enable.auto.commit",
    "enable.auto.offset.store",
    "auto.offset.reset",
    "isolation.level",
    "partition.assignment.strategy",
];

/// The properties that every client shares. A property that cannot be read, or that is fixed, is refused.
pub(super) fn base_config(settings: &KafkaSettings) -> Result<ClientConfig, KafkaError> {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", &settings.kafka_brokers)
        .set("client.id", "coupon")
        .set("socket.keepalive.enable", "true")
        .set("reconnect.backoff.ms", "50")
        .set("reconnect.backoff.max.ms", "1000");
    for property in settings.kafka_properties.iter().filter(|text| !text.trim().is_empty()) {
        let Some((key, value)) = property.split_once('=') else {
            return Err(KafkaError::Unsuitable(format!(
                "Kafka property {property:?} is not key=value; see COUPON_KAFKA_PROPERTIES"
            )));
        };
        let key = key.trim();
        if FIXED.contains(&key) {
            return Err(KafkaError::Unsuitable(format!(
                "Kafka property {key} cannot be set: the promise rests on it; remove it from COUPON_KAFKA_PROPERTIES"
            )));
        }
        config.set(key, value.trim());
    }
    Ok(config)
}

/// Whether a client knows no broker any more: an answer without brokers, as a cluster gives while none of them counts as
/// alive, makes it forget all that it knew, those that it began with among them, and it asks nobody any more. Another
/// client helps. (librdkafka issue 5301, seen with 2.12.1.)
pub(super) fn is_stranded(statistics: &Statistics) -> bool {
    !statistics
        .brokers
        .values()
        .any(|broker| matches!(broker.source.as_str(), "configured" | "learned"))
}

/// Runs a call of the client that blocks away from the runtime's threads.
pub(super) async fn blocking<T, F>(what: &str, work: F) -> Result<T, KafkaError>
where
    T: Send + 'static,
    F: FnOnce() -> Result<T, KafkaError> + Send + 'static,
{
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => Err(KafkaError::unavailable(what, error)),
    }
}

/// What a client with brokers of these sources (`configured`, `learned`, `internal`, `logical`) tells.
#[cfg(test)]
pub(super) fn statistics(sources: &[&str]) -> Statistics {
    let broker = |source: &&str| {
        let broker = rdkafka::statistics::Broker {
            source: (*source).to_owned(),
            ..Default::default()
        };
        ((*source).to_owned(), broker)
    };
    Statistics {
        brokers: sources.iter().map(broker).collect(),
        ..Statistics::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_stranded_when_no_broker_of_the_cluster_is_left() {
        for (sources, stranded) in [
            (&["configured"][..], false),
            (&["logical", "learned"], false),
            (&["logical", "internal"], true),
            (&[], true),
        ] {
            assert_eq!(is_stranded(&statistics(sources)), stranded, "{sources:?}");
        }
    }

    fn with(properties: &[&str]) -> Result<ClientConfig, KafkaError> {
        base_config(&KafkaSettings {
            kafka_brokers: "127.0.0.1:1".into(),
            kafka_properties: properties.iter().map(|&p| p.to_owned()).collect(),
        })
    }

    #[test]
    fn free_properties_pass_and_fixed_ones_do_not() {
        let config = with(&["security.protocol=ssl", " sasl.username = u=v", ""]).expect("valid");
        assert_eq!(config.get("security.protocol"), Some("ssl"));
        assert_eq!(config.get("sasl.username"), Some("u=v"));
        for bad in ["acks=1", "enable.idempotence=false", "nonsense"] {
            assert!(matches!(with(&[bad]), Err(KafkaError::Unsuitable(_))), "{bad}");
        }
    }
}
