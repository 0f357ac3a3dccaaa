//! The nodes of a Redis Cluster and which of them serves which slot. The client library's own Cluster connection is not
//! used: it sends a command again after a lost connection, and what may have run must never be sent twice.

use std::{collections::HashMap, sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use redis::{Cmd, ConnectionInfo, Value};
use tokio::sync::Mutex;

use super::{
    node::{Failed, Node, Target},
    sentinel::at,
};

/// How often one command follows a redirection. None of the servers that redirected has run it.
const REDIRECTIONS: usize = 5;

const SLOTS: u16 = 16_384;

/// A Cluster.
pub(super) struct Cluster {
    seeds: Vec<ConnectionInfo>,
    timeout: Duration,
    topology: ArcSwap<Topology>,
    refreshing: Mutex<()>,
}

#[derive(Default)]
struct Topology {
    nodes: HashMap<Address, Arc<Node>>,
    /// First slot, last slot, primary.
    ranges: Vec<(u16, u16, Address)>,
}

type Address = (String, u16);

impl Cluster {
    /// Reads the topology from the first seed that answers.
    pub(super) async fn connect(seeds: Vec<ConnectionInfo>, timeout: Duration) -> Result<Self, Failed> {
        let cluster = Self {
            seeds,
            timeout,
            topology: ArcSwap::default(),
            refreshing: Mutex::new(()),
        };
        cluster.refresh(None).await?;
        Ok(cluster)
    }

    /// Sends a command to the primary of `key`. Follows redirections and looks for a new primary where the known one
    /// cannot be reached: in each of these cases nothing has run.
    pub(super) async fn send(&self, key: &str, command: &Cmd) -> Result<Value, Failed> {
        let slot = slot(key.as_bytes());
        let mut target = self.primary_of(slot).await?;
        let mut asking = false;
        let mut redirections = 0;
        loop {
            let (address, node) = &target;
            let answer = if asking {
                let mut together = redis::pipe();
                together.add_command(redis::cmd("ASKING"));
                together.add_command(command.clone());
                node.send_together(&together).await
            } else {
                node.send(command).await
            };
            let failed = match answer {
                Ok(value) => return Ok(value),
                Err(failed) => failed,
            };
            redirections += 1;
            let next = match &failed {
                _ if redirections > REDIRECTIONS => None,
                Failed::Refused { code, message } => match code.as_str() {
                    "MOVED" | "ASK" => {
                        asking = code == "ASK";
                        let next = redirection(message, &address.0);
                        if !asking {
                            self.refresh(None).await.ok();
                        }
                        next.map(|next| self.node(next))
                    }
                    "READONLY" | "CLUSTERDOWN" | "MASTERDOWN" | "LOADING" => {
                        self.refresh(Some(address)).await.ok();
                        None
                    }
                    _ => None,
                },
                Failed::NotSent(_) => {
                    self.refresh(Some(address)).await.ok();
                    asking = false;
                    self.primary_of(slot).await.ok().filter(|next| next.0 != *address)
                }
                Failed::Lost(_) => None,
            };
            match next {
                Some(next) => target = next,
                None => return Err(failed),
            }
        }
    }

    /// Every primary that serves slots.
    pub(super) async fn primaries(&self) -> Result<Vec<Arc<Node>>, Failed> {
        self.refresh(None).await?;
        let topology = self.topology.load_full();
        let mut addresses: Vec<&Address> = topology.ranges.iter().map(|(_, _, address)| address).collect();
        addresses.sort();
        addresses.dedup();
        Ok(addresses
            .into_iter()
            .filter_map(|address| topology.nodes.get(address).cloned())
            .collect())
    }

    async fn primary_of(&self, slot: u16) -> Result<(Address, Arc<Node>), Failed> {
        if let Some(found) = self.topology.load().primary_of(slot) {
            return Ok(found);
        }
        self.refresh(None).await?;
        self.topology
            .load()
            .primary_of(slot)
            .ok_or_else(|| Failed::NotSent(format!("no node of the Cluster serves slot {slot}")))
    }

    /// The node at an address, also one that the topology does not have (yet).
    fn node(&self, address: Address) -> (Address, Arc<Node>) {
        let known = self.topology.load().nodes.get(&address).cloned();
        let node = known.unwrap_or_else(|| Arc::new(self.new_node(&address)));
        (address, node)
    }

    fn new_node(&self, address: &Address) -> Node {
        let info = at(&self.seeds[0], &address.0, address.1);
        Node::new(Target::Fixed(Box::new(info)), self.timeout)
    }

    /// Reads the slots anew from any node; `doubted` is asked last, since its own view may be what is wrong. One at a
    /// time: who waited for another's refresh takes its result.
    async fn refresh(&self, doubted: Option<&Address>) -> Result<(), Failed> {
        let before = self.topology.load_full();
        let _guard = self.refreshing.lock().await;
        if !Arc::ptr_eq(&before, &self.topology.load_full()) {
            return Ok(());
        }
        let mut candidates: Vec<(Address, Arc<Node>)> = before
            .nodes
            .iter()
            .map(|(address, node)| (address.clone(), Arc::clone(node)))
            .collect();
        for seed in &self.seeds {
            let address = address_of(seed);
            if !before.nodes.contains_key(&address) {
                let node = Node::new(Target::Fixed(Box::new(seed.clone())), self.timeout);
                candidates.push((address, Arc::new(node)));
            }
        }
        candidates.sort_by_key(|(address, _)| Some(address) == doubted);

        let mut reasons = Vec::new();
        for (address, node) in candidates {
            match node.send(redis::cmd("CLUSTER").arg("SLOTS")).await {
                Ok(value) => match parse_slots(&value, &address.0) {
                    Some(ranges) if !ranges.is_empty() => {
                        self.store(&before, ranges);
                        return Ok(());
                    }
                    _ => reasons.push(format!("{}:{}: serves no slots", address.0, address.1)),
                },
                Err(Failed::NotSent(reason) | Failed::Lost(reason) | Failed::Refused { message: reason, .. }) => {
                    reasons.push(reason);
                }
            }
        }
        Err(Failed::NotSent(format!(
            "no node tells the Cluster's slots: {}",
            reasons.join("; ")
        )))
    }

    fn store(&self, before: &Topology, ranges: Vec<(u16, u16, Vec<Address>)>) {
        let mut nodes = HashMap::new();
        for address in ranges.iter().flat_map(|(_, _, addresses)| addresses) {
            nodes.entry(address.clone()).or_insert_with(|| {
                let known = before.nodes.get(address).cloned();
                known.unwrap_or_else(|| Arc::new(self.new_node(address)))
            });
        }
        let ranges = ranges
            .into_iter()
            .filter_map(|(first, last, addresses)| Some((first, last, addresses.into_iter().next()?)))
            .collect();
        self.topology.store(Arc::new(Topology { nodes, ranges }));
    }
}

impl Topology {
    fn primary_of(&self, slot: u16) -> Option<(Address, Arc<Node>)> {
        let (_, _, address) = self
            .ranges
            .iter()
            .find(|(first, last, _)| (*first..=*last).contains(&slot))?;
        Some((address.clone(), self.nodes.get(address).cloned()?))
    }
}

fn address_of(info: &ConnectionInfo) -> Address {
    match info.addr() {
        redis::ConnectionAddr::Tcp(host, port) | redis::ConnectionAddr::TcpTls { host, port, .. } => {
            (host.clone(), *port)
        }
        other => (other.to_string(), 0),
    }
}

/// `CLUSTER SLOTS`: first slot, last slot, then the primary and its replicas. An empty host is the one that was asked.
fn parse_slots(value: &Value, asked: &str) -> Option<Vec<(u16, u16, Vec<Address>)>> {
    type Entry = (u16, u16, Vec<Value>);
    let entries: Vec<Vec<Value>> = redis::from_redis_value_ref(value).ok()?;
    let mut ranges: Vec<Entry> = Vec::new();
    for entry in entries {
        let mut fields = entry.into_iter();
        let first = redis::from_redis_value(fields.next()?).ok()?;
        let last = redis::from_redis_value(fields.next()?).ok()?;
        ranges.push((first, last, fields.collect()));
    }
    ranges
        .into_iter()
        .map(|(first, last, nodes)| {
            let addresses = nodes
                .iter()
                .map(|node| node_address(node, asked))
                .collect::<Option<_>>()?;
            Some((first, last, addresses))
        })
        .collect()
}

fn node_address(node: &Value, asked: &str) -> Option<Address> {
    let Value::Array(fields) = node else { return None };
    let host: Option<String> = redis::from_redis_value_ref(fields.first()?).ok()?;
    let port = redis::from_redis_value_ref(fields.get(1)?).ok()?;
    let host = host.filter(|host| !host.is_empty()).unwrap_or_else(|| asked.to_owned());
    Some((host, port))
}

/// `… MOVED 3999 127.0.0.1:6381` or `… ASK …`: where to. An empty host is the one that was asked.
fn redirection(message: &str, asked: &str) -> Option<Address> {
    let target = message.split_whitespace().next_back()?;
    let (host, port) = target.rsplit_once(':')?;
    let host = if host.is_empty() { asked } else { host };
    Some((host.to_owned(), port.parse().ok()?))
}

/// The slot of a key: CRC16 (XMODEM) of what stands in its first braces, or of the whole.
fn slot(key: &[u8]) -> u16 {
    let tag = key.iter().position(|&b| b == b'{').and_then(|open| {
        let rest = &key[open + 1..];
        let close = rest.iter().position(|&b| b == b'}')?;
        (close > 0).then_some(&rest[..close])
    });
    let crc = tag.unwrap_or(key).iter().fold(0u16, |crc, &byte| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 {
                crc << 1
            } else {
                (crc << 1) ^ 0x1021
            }
        })
    });
    crc % SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_cluster_specification() {
        assert_eq!(slot(b"123456789"), 0x31C3);
        assert_eq!(slot(b"foo"), 12182);
        assert_eq!(slot(b"{user1000}.following"), slot(b"{user1000}.followers"));
        assert_eq!(slot(b"foo{}{bar}"), slot(b"foo{}{bar}"));
        assert_eq!(slot(b"foo{{bar}}zap"), slot(b"{bar"));
        assert_ne!(slot(b"foo{}bar"), slot(b""));
    }

    #[test]
    fn a_redirection_names_its_target() {
        let to = |message| redirection(message, "asked");
        assert_eq!(to("MOVED 3999 127.0.0.1:6381"), Some(("127.0.0.1".into(), 6381)));
        assert_eq!(to("MOVED 3999 ::1:6381"), Some(("::1".into(), 6381)));
        assert_eq!(to("MOVED 3999 :6381"), Some(("asked".into(), 6381)));
        assert_eq!(to("MOVED"), None);
    }

    #[test]
    fn slots_without_a_host_are_on_the_node_that_was_asked() {
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let node = |host: Value| Value::Array(vec![host, Value::Int(7000), text("id"), Value::Array(vec![])]);
        let value = Value::Array(vec![Value::Array(vec![
            Value::Int(0),
            Value::Int(16383),
            node(text("")),
            node(Value::Nil),
            node(text("10.0.0.1")),
        ])]);
        let address = |host: &str| (host.to_owned(), 7000);
        assert_eq!(
            parse_slots(&value, "asked"),
            Some(vec![(
                0,
                16383,
                vec![address("asked"), address("asked"), address("10.0.0.1")]
            )])
        );
        assert_eq!(parse_slots(&text("what"), "asked"), None);
    }
}
