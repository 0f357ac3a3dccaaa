//! Asks the sentinels which server is the primary.

use std::time::Duration;

use redis::{ConnectionInfo, Value, aio::ConnectionLike};

use super::node::open;

/// The sentinels of one primary.
pub(super) struct Sentinels {
    /// Each with its own address and credentials.
    pub(super) sentinels: Vec<ConnectionInfo>,
    /// The name that they give the primary.
    pub(super) name: String,
    /// How to connect to the primary; its address is replaced.
    pub(super) primary: ConnectionInfo,
}

impl Sentinels {
    /// The first server that a sentinel names and that says itself that it is a primary: after a failover a sentinel
    /// may still name the old one.
    pub(super) async fn primary(&self, timeout: Duration) -> Result<ConnectionInfo, String> {
        let mut reasons = Vec::new();
        for sentinel in &self.sentinels {
            match self.ask(sentinel, timeout).await {
                Ok(info) => return Ok(info),
                Err(reason) => reasons.push(reason),
            }
        }
        Err(format!(
            "no sentinel knows a primary {:?}: {}",
            self.name,
            reasons.join("; ")
        ))
    }

    async fn ask(&self, sentinel: &ConnectionInfo, timeout: Duration) -> Result<ConnectionInfo, String> {
        let (mut connection, _) = open(sentinel.clone(), timeout).await?;
        let (host, port): (String, u16) = redis::cmd("SENTINEL")
            .arg("GET-MASTER-ADDR-BY-NAME")
            .arg(&self.name)
            .query_async(&mut connection)
            .await
            .map_err(|error| format!("{}: {error}", sentinel.addr()))?;
        let info = at(&self.primary, &host, port);
        let (mut connection, _) = open(info.clone(), timeout).await?;
        match connection.req_packed_command(&redis::cmd("ROLE")).await {
            Ok(Value::Array(role)) if role.first() == Some(&Value::BulkString(b"master".to_vec())) => Ok(info),
            Ok(_) => Err(format!("{host}:{port}, named by {}, is no primary", sentinel.addr())),
            Err(error) => Err(format!("{host}:{port}: {error}")),
        }
    }
}

/// The same way to connect, to another address.
pub(super) fn at(like: &ConnectionInfo, host: &str, port: u16) -> ConnectionInfo {
    let host = host.to_owned();
    let addr = match like.addr() {
        redis::ConnectionAddr::TcpTls {
            insecure, tls_params, ..
        } => redis::ConnectionAddr::TcpTls {
            host,
            port,
            insecure: *insecure,
            tls_params: tls_params.clone(),
        },
        _ => redis::ConnectionAddr::Tcp(host, port),
    };
    like.clone().set_addr(addr)
}
