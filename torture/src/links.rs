//! The wires: a proxy between each process and each server.

use std::{io, time::Duration};

use testkit::{
    child::ServerError,
    kafka::KafkaServer,
    proxy::{Proxy, Treatment},
};
use tokio::sync::{Mutex, MutexGuard};

use crate::plan::{INTAKES, Server, Target, WORKERS, Wire};

/// Processes of the product, and the owner of the campaigns.
pub const PARTIES: usize = INTAKES + WORKERS + 1;
/// The owner's place among the parties.
pub const OWNER: usize = INTAKES + WORKERS;

/// A wire. One fault at a time has it.
pub struct Link {
    /// What breaks it.
    pub proxy: Proxy,
    busy: Mutex<()>,
}

/// A wire that a fault has. It is whole again when this is dropped.
pub struct Broken<'a> {
    link: &'a Link,
    _busy: MutexGuard<'a, ()>,
}

impl Drop for Broken<'_> {
    fn drop(&mut self) {
        self.link.proxy.restore();
    }
}

impl Link {
    fn new(proxy: Proxy) -> Self {
        Self {
            proxy,
            busy: Mutex::new(()),
        }
    }

    /// Takes the wire and breaks it. Waits while another fault has it.
    pub async fn break_it(&self, wire: Wire) -> Broken<'_> {
        let busy = self.busy.lock().await;
        match wire {
            Wire::Cut => self.proxy.refuse(),
            Wire::Delay(pause) => self.proxy.replies(Treatment::Delay(pause)),
            Wire::HoldRequests => self.proxy.requests(Treatment::Hold),
            Wire::HoldReplies => self.proxy.replies(Treatment::Hold),
            Wire::LoseReplies => self.proxy.drop_replies(),
        }
        Broken {
            link: self,
            _busy: busy,
        }
    }

    /// Takes the wire without breaking it.
    pub async fn hold(&self) -> Broken<'_> {
        Broken {
            link: self,
            _busy: self.busy.lock().await,
        }
    }
}

/// All wires.
pub struct Links {
    links: Vec<[Link; 3]>,
}

impl Links {
    /// Wires of every party to the three servers.
    pub async fn lay(redis: u16, kafka: &KafkaServer, postgres: u16) -> Result<Self, ServerError> {
        let failed = |source: io::Error| ServerError::Io {
            server: "a proxy",
            what: "start the listener",
            source,
        };
        let mut links = Vec::new();
        for _ in 0..PARTIES {
            links.push([
                Link::new(Proxy::to(redis).await.map_err(failed)?),
                Link::new(kafka.proxy().await?),
                Link::new(Proxy::to(postgres).await.map_err(failed)?),
            ]);
        }
        Ok(Self { links })
    }

    /// The wire of a party to a server.
    pub fn of(&self, party: usize, server: Server) -> &Link {
        &self.links[party][server.index()]
    }

    /// The wire of a process to a server.
    pub fn between(&self, target: Target, server: Server) -> &Link {
        self.of(target.index(), server)
    }

    /// All wires to a server.
    pub fn to(&self, server: Server) -> impl Iterator<Item = &Link> {
        self.links.iter().map(move |links| &links[server.index()])
    }

    /// Breaks the wires of all processes to a server for a time.
    pub async fn all_to(&self, server: Server, wire: Wire, time: Duration) {
        let mut broken = Vec::new();
        for link in self.to(server) {
            broken.push(link.break_it(wire).await);
        }
        tokio::time::sleep(time).await;
    }
}
