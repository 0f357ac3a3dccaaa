use std::{time::{Duration, Instant}};
use campaign::{kafka::{consumer::{ConsumerEvent, GroupConsumer}, topics::create, producer::{Producer,Outgoing}}, naming::Naming};
use testkit::kafka::{KafkaServer, KafkaOptions};

#[tokio::test(flavor = "multi_thread")]
async fn stress_freeze() {
    if let Ok(filter) = std::env::var("LOGF") { tracing_subscriber::fmt().with_env_filter(tracing_subscriber::EnvFilter::new(filter)).init(); }
    let freeze: u64 = std::env::var("FREEZE").unwrap_or("15".into()).parse().unwrap();
    let mut options = KafkaOptions::default();
    if let Ok(p) = std::env::var("SERVER") { for p in p.split(',') { let (k, v) = p.split_once('=').unwrap(); options = options.with(k, v); } }
    let server = KafkaServer::start_with(options).await.unwrap();
    let mut settings = server.settings();
    if let Ok(p) = std::env::var("PROPS") { settings.kafka_properties = p.split(',').map(str::to_owned).collect(); }
    let naming = Naming::new("t").unwrap();
    create(&settings, &naming, 1).await.unwrap();
    let producers: Vec<_> = (0..4).map(|_| Producer::start(&settings, Duration::from_secs(5)).unwrap()).collect();
    let n: usize = std::env::var("MEMBERS").unwrap_or("10".into()).parse().unwrap();
    let cycles: usize = std::env::var("CYCLES").unwrap_or("1".into()).parse().unwrap();
    let states: std::sync::Arc<std::sync::Mutex<Vec<(usize, Instant)>>> = Default::default();
    let mut members = Vec::new();
    for i in 0..n {
        let (member, mut events) = GroupConsumer::join(&settings, &format!("g{i}"), &naming.requests_topic(), Duration::from_secs(10)).unwrap();
        states.lock().unwrap().push((0, Instant::now()));
        let states = states.clone();
        tokio::spawn(async move {
            while let Some(event) = events.recv().await {
                match event {
                    ConsumerEvent::Assigned(p) => states.lock().unwrap()[i] = (p.len(), Instant::now()),
                    ConsumerEvent::Revoked(_) => states.lock().unwrap()[i] = (0, Instant::now()),
                    _ => {}
                }
            }
        });
        members.push(member);
    }
    for cycle in 0..cycles {
        let t = Instant::now();
        while states.lock().unwrap().iter().any(|(p, _)| *p == 0) && t.elapsed() < Duration::from_secs(60) { tokio::time::sleep(Duration::from_millis(100)).await; }
        eprintln!("all in after {:?}: {:?}", t.elapsed(), states.lock().unwrap().iter().map(|s| s.0).collect::<Vec<_>>());
        server.freeze().unwrap();
        tokio::time::sleep(Duration::from_secs(freeze)).await;
        eprintln!("thaw; {:?}", states.lock().unwrap().iter().map(|s| s.0).collect::<Vec<_>>());
        server.thaw().unwrap();
        let t = Instant::now();
        for s in [3u64, 10, 20, 40, 60] {
            tokio::time::sleep_until((t + Duration::from_secs(s)).into()).await;
            let topic = naming.requests_topic();
            let mut acked = 0;
            let sends: Vec<_> = producers.iter().map(|p| p.send(&Outgoing { topic: &topic, value: b"x", ..Outgoing::default() })).collect();
            for s in sends { if let Ok(Ok(d)) = tokio::time::timeout(Duration::from_secs(2), s).await { if matches!(d, campaign::kafka::producer::Delivery::Acknowledged { .. }) { acked += 1; } } }
            let stuck = states.lock().unwrap().iter().filter(|s| s.0 == 0).count();
            eprintln!("cycle {cycle}: {s} s after: {stuck} of {n} are out; producers {acked} of 4, renewed {:?}", producers.iter().map(|p| p.renewals()).collect::<Vec<_>>());
            if stuck == 0 && acked == 4 && s >= 10 { break; }
        }
    }
}
