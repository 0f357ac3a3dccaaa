//! The topics: created for development, checked at start.

use std::time::{Duration, Instant};

use rdkafka::{
    ClientConfig,
    admin::{AdminClient, AdminOptions, ConfigResource, NewTopic, ResourceSpecifier, TopicReplication},
    client::DefaultClientContext,
    error::RDKafkaErrorCode,
};

use super::client::{KafkaError, base_config, blocking};
use crate::{naming::Naming, settings::KafkaSettings};

/// Partitions of claims and of events.
pub const PARTITIONS: i32 = 12;
/// How long claims, dead letters and offsets must be kept: a worker may be away for that long.
const RETENTION: Duration = Duration::from_secs(14 * 24 * 3600);
const TIMEOUT: Duration = Duration::from_secs(15);

struct Topic {
    name: String,
    partitions: i32,
}

fn topics(naming: &Naming) -> [Topic; 3] {
    [
        Topic {
            name: naming.requests_topic(),
            partitions: PARTITIONS,
        },
        Topic {
            name: naming.dlq_topic(),
            partitions: 1,
        },
        Topic {
            name: naming.lifecycle_topic(),
            partitions: PARTITIONS,
        },
    ]
}

fn admin(settings: &KafkaSettings) -> Result<AdminClient<DefaultClientContext>, KafkaError> {
    base_config(settings)?
        .create()
        .map_err(|error| KafkaError::Unsuitable(format!("the Kafka admin client cannot be made: {error}")))
}

fn options() -> AdminOptions {
    AdminOptions::new()
        .request_timeout(Some(TIMEOUT))
        .operation_timeout(Some(TIMEOUT))
}

/// Creates the topics that are missing, with `replication`. Those that are there stay as they are.
pub async fn create(settings: &KafkaSettings, naming: &Naming, replication: i32) -> Result<(), KafkaError> {
    let admin = admin(settings)?;
    let retention = RETENTION.as_millis().to_string();
    let in_sync = replication.min(2).to_string();
    let wanted = topics(naming);
    let new_topics: Vec<NewTopic<'_>> = wanted
        .iter()
        .map(|topic| {
            NewTopic::new(&topic.name, topic.partitions, TopicReplication::Fixed(replication))
                .set("message.timestamp.type", "LogAppendTime")
                .set("retention.ms", &retention)
                .set("min.insync.replicas", &in_sync)
                .set("unclean.leader.election.enable", "false")
        })
        .collect();
    let results = admin
        .create_topics(&new_topics, &options())
        .await
        .map_err(|error| KafkaError::unavailable("create the topics", error))?;
    for result in results {
        match result {
            Ok(_) | Err((_, RDKafkaErrorCode::TopicAlreadyExists)) => {}
            Err((topic, code)) => return Err(KafkaError::unavailable(format!("create topic {topic}"), code)),
        }
    }
    wait_for_leaders(base_config(settings)?, naming).await
}

/// A broker answers that a topic is created before every broker knows it: whoever asks next must not find it missing.
async fn wait_for_leaders(client: ClientConfig, naming: &Naming) -> Result<(), KafkaError> {
    let names: Vec<String> = topics(naming).into_iter().map(|topic| topic.name).collect();
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let (client, names) = (client.clone(), names.clone());
        let shapes = blocking("read the topics", move || shapes(&client, &names)).await?;
        if shapes.topics.iter().all(Option::is_some) {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(KafkaError::unavailable(
                "see the new topics",
                "they have no leaders yet",
            ));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Refuses missing topics and, unless `dev`, settings under which an acknowledged record can be lost. One error names
/// everything that must be changed.
pub async fn check(settings: &KafkaSettings, naming: &Naming, dev: bool) -> Result<(), KafkaError> {
    let admin = admin(settings)?;
    let client = base_config(settings)?;
    let names: Vec<String> = topics(naming).into_iter().map(|topic| topic.name).collect();
    let shapes = blocking("read the topics", move || shapes(&client, &names)).await?;

    let mut problems = Vec::new();
    for (wanted, shape) in topics(naming).iter().zip(&shapes.topics) {
        match shape {
            None => problems.push(format!(
                "topic {} is missing or has no leader: create it with {} partitions (`coupon topics create`)",
                wanted.name, wanted.partitions
            )),
            Some(replication) if !dev && *replication < 3 => {
                problems.push(format!("topic {} has replication {replication}: needs 3", wanted.name))
            }
            Some(_) => {}
        }
    }
    if !dev {
        for (topic, shape) in topics(naming).iter().zip(&shapes.topics) {
            if shape.is_some() {
                problems.extend(topic_problems(&admin, &topic.name).await?);
            }
        }
        problems.extend(broker_problems(&admin, shapes.broker).await?);
    }
    if problems.is_empty() {
        Ok(())
    } else {
        Err(KafkaError::Unsuitable(format!(
            "Kafka at {} cannot hold campaigns: {}",
            settings.kafka_brokers,
            problems.join("; ")
        )))
    }
}

struct Shapes {
    /// Smallest replication of each topic's partitions; `None`: no such topic, or a partition without a leader.
    topics: Vec<Option<usize>>,
    broker: i32,
}

fn shapes(client: &ClientConfig, names: &[String]) -> Result<Shapes, KafkaError> {
    use rdkafka::consumer::{BaseConsumer, Consumer};
    let consumer: BaseConsumer = client
        .create()
        .map_err(|error| KafkaError::Unsuitable(format!("the Kafka client cannot be made: {error}")))?;
    // Asked as a whole: asking for a topic by name could create it.
    let metadata = consumer
        .fetch_metadata(None, TIMEOUT)
        .map_err(|error| KafkaError::unavailable("list the topics", error))?;
    let topics = names
        .iter()
        .map(|name| {
            let topic = metadata.topics().iter().find(|topic| topic.name() == name.as_str())?;
            topic
                .partitions()
                .iter()
                .map(|partition| partition.replicas().len())
                .min()
        })
        .collect();
    // Not the one that answered: it may be known by its bootstrap address only, and then has no id.
    let broker = metadata
        .brokers()
        .first()
        .ok_or_else(|| KafkaError::unavailable("list the brokers", "none is known"))?
        .id();
    Ok(Shapes { topics, broker })
}

async fn describe(
    admin: &AdminClient<DefaultClientContext>,
    what: ResourceSpecifier<'_>,
) -> Result<ConfigResource, KafkaError> {
    let described = admin
        .describe_configs([&what], &options())
        .await
        .map_err(|error| KafkaError::unavailable("describe the settings", error))?;
    match described.into_iter().next() {
        Some(Ok(resource)) => Ok(resource),
        Some(Err(code)) => Err(KafkaError::unavailable("describe the settings", code)),
        None => Err(KafkaError::unavailable("describe the settings", "no answer")),
    }
}

fn value<'a>(resource: &'a ConfigResource, key: &str) -> Option<&'a str> {
    resource.get(key).and_then(|entry| entry.value.as_deref())
}

async fn topic_problems(admin: &AdminClient<DefaultClientContext>, topic: &str) -> Result<Vec<String>, KafkaError> {
    let settings = describe(admin, ResourceSpecifier::Topic(topic)).await?;
    Ok(judge_topic(topic, |key| value(&settings, key)))
}

async fn broker_problems(admin: &AdminClient<DefaultClientContext>, broker: i32) -> Result<Vec<String>, KafkaError> {
    let settings = describe(admin, ResourceSpecifier::Broker(broker)).await?;
    Ok(judge_broker(|key| value(&settings, key)))
}

fn judge_topic<'a>(topic: &str, setting: impl Fn(&str) -> Option<&'a str>) -> Vec<String> {
    let mut problems = Vec::new();
    let number = |key: &str| setting(key).and_then(|text| text.parse::<i64>().ok());
    if number("min.insync.replicas").is_none_or(|count| count < 2) {
        problems.push(format!("topic {topic}: set min.insync.replicas=2"));
    }
    if setting("unclean.leader.election.enable") != Some("false") {
        problems.push(format!("topic {topic}: set unclean.leader.election.enable=false"));
    }
    let needed = RETENTION.as_millis() as i64;
    if number("retention.ms").is_none_or(|kept| kept != -1 && kept < needed) {
        problems.push(format!("topic {topic}: set retention.ms={needed} or more"));
    }
    if number("retention.bytes").is_some_and(|bytes| bytes != -1) {
        problems.push(format!("topic {topic}: set retention.bytes=-1"));
    }
    if setting("cleanup.policy").is_some_and(|policy| policy.contains("compact")) {
        problems.push(format!("topic {topic}: set cleanup.policy=delete"));
    }
    problems
}

fn judge_broker<'a>(setting: impl Fn(&str) -> Option<&'a str>) -> Vec<String> {
    let needed = (RETENTION.as_secs() / 60) as i64;
    let kept = setting("offsets.retention.minutes").and_then(|text| text.parse::<i64>().ok());
    if kept.is_some_and(|kept| kept < needed) {
        vec![format!("brokers: set offsets.retention.minutes={needed} or more")]
    } else {
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn judged(changes: &[(&str, &str)]) -> Vec<String> {
        let mut settings = HashMap::from([
            ("min.insync.replicas", "2"),
            ("unclean.leader.election.enable", "false"),
            ("retention.ms", "1209600000"),
            ("retention.bytes", "-1"),
            ("cleanup.policy", "delete"),
        ]);
        settings.extend(changes.iter().copied());
        judge_topic("t", |key| settings.get(key).copied())
    }

    #[test]
    fn a_topic_that_can_lose_acknowledged_records_is_refused_by_the_name_of_its_setting() {
        assert!(judged(&[]).is_empty());
        assert!(judged(&[("retention.ms", "-1")]).is_empty());
        for (key, bad) in [
            ("min.insync.replicas", "1"),
            ("unclean.leader.election.enable", "true"),
            ("retention.ms", "604800000"),
            ("retention.bytes", "1000000"),
            ("cleanup.policy", "compact"),
        ] {
            let problems = judged(&[(key, bad)]);
            assert!(
                problems.len() == 1 && problems[0].contains(key),
                "{key}={bad}: {problems:?}"
            );
        }
    }

    #[test]
    fn offsets_must_be_kept_as_long_as_claims() {
        assert!(judge_broker(|_| Some("20160")).is_empty());
        assert_eq!(judge_broker(|_| Some("10080")).len(), 1);
    }
}
