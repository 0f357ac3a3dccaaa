//! One keep-alive connection, and how to drop it in the middle of a request.

use std::{fmt, io, str::FromStr, time::Duration};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{
    Request, Uri,
    client::conn::http1::{self, SendRequest},
    header,
};
use hyper_util::rt::TokioIo;
use tokio::{net::TcpStream, task::JoinHandle};

/// Where the door is: `http://host:port`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    host: String,
    port: u16,
}

/// Why a URL is no target.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not http://host[:port]: the load generator speaks plain HTTP/1.1 and uses no path")]
pub struct TargetError(String);

impl FromStr for Target {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Self, TargetError> {
        let refused = || TargetError(text.to_owned());
        let uri: Uri = text.parse().map_err(|_| refused())?;
        let plain = uri.scheme_str() == Some("http") && matches!(uri.path(), "" | "/") && uri.query().is_none();
        match uri.host() {
            Some(host) if plain => Ok(Self {
                host: host.trim_matches(['[', ']']).to_owned(),
                port: uri.port_u16().unwrap_or(80),
            }),
            _ => Err(refused()),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// Why there is no answer. The request may have been done.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No connection.
    #[error("{target}: {source}")]
    Connect {
        /// Where to.
        target: Target,
        /// As the system put it.
        source: io::Error,
    },
    /// The connection broke.
    #[error("the connection broke: {0}")]
    Broken(#[from] hyper::Error),
    /// A request that cannot be written.
    #[error("the request cannot be written: {0}")]
    Request(#[from] hyper::http::Error),
    /// Too late.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
}

/// An answer.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The HTTP status.
    pub status: u16,
    /// `Retry-After`, where it is a number of seconds.
    pub retry_after: Option<Duration>,
    /// The body.
    pub body: Bytes,
}

/// What is sent.
#[derive(Clone, Debug)]
pub enum Ask {
    /// `POST /coupon-issues`.
    Claim {
        /// The JSON.
        body: Bytes,
        /// `Idempotency-Key`.
        key: String,
    },
    /// `GET` of this path.
    Get(String),
}

/// A connection that opens itself when it is needed and stays open.
pub struct Connection {
    target: Target,
    host: String,
    timeout: Duration,
    live: Option<Live>,
}

struct Live {
    sender: SendRequest<Full<Bytes>>,
    driver: JoinHandle<()>,
}

impl Drop for Live {
    fn drop(&mut self) {
        // Closes the socket, whatever is under way.
        self.driver.abort();
    }
}

impl Connection {
    /// Not open yet. Each answer may take `timeout`.
    pub fn new(target: &Target, timeout: Duration) -> Self {
        Self {
            target: target.clone(),
            host: target.to_string(),
            timeout,
            live: None,
        }
    }

    /// Asks and waits for the answer. Never sends anything twice.
    pub async fn ask(&mut self, ask: &Ask) -> Result<Reply, ClientError> {
        let timeout = self.timeout;
        let answer = tokio::time::timeout(timeout, self.exchange(ask)).await;
        let answer = answer.unwrap_or(Err(ClientError::Timeout(timeout)));
        if answer.is_err() {
            self.live = None;
        }
        answer
    }

    /// Asks, waits for as long as the patience lasts, and drops the connection.
    pub async fn ask_and_hang_up(&mut self, ask: &Ask, patience: Duration) {
        // Whatever came in time, the user does not see it.
        let _ = tokio::time::timeout(patience, self.exchange(ask)).await;
        self.live = None;
    }

    async fn exchange(&mut self, ask: &Ask) -> Result<Reply, ClientError> {
        let request = self.request(ask)?;
        let sender = self.sender().await?;
        let response = sender.send_request(request).await?;
        let status = response.status().as_u16();
        let retry_after = response
            .headers()
            .get(header::RETRY_AFTER)
            .and_then(|value| value.to_str().ok()?.parse().ok())
            .map(Duration::from_secs);
        let body = response.into_body().collect().await?.to_bytes();
        Ok(Reply {
            status,
            retry_after,
            body,
        })
    }

    fn request(&self, ask: &Ask) -> Result<Request<Full<Bytes>>, hyper::http::Error> {
        match ask {
            Ask::Claim { body, key } => Request::post("/coupon-issues")
                .header(header::HOST, &self.host)
                .header(header::CONTENT_TYPE, "application/json")
                .header("idempotency-key", key)
                .body(Full::new(body.clone())),
            Ask::Get(path) => Request::get(path.as_str())
                .header(header::HOST, &self.host)
                .body(Full::default()),
        }
    }

    async fn sender(&mut self) -> Result<&mut SendRequest<Full<Bytes>>, ClientError> {
        let usable = match &mut self.live {
            // An idle connection that the server closed says so here.
            Some(live) => live.sender.ready().await.is_ok(),
            None => false,
        };
        let live = match self.live.take().filter(|_| usable) {
            Some(live) => live,
            None => self.open().await?,
        };
        Ok(&mut self.live.insert(live).sender)
    }

    async fn open(&self) -> Result<Live, ClientError> {
        let failed = |source| ClientError::Connect {
            target: self.target.clone(),
            source,
        };
        let stream = TcpStream::connect((self.target.host.as_str(), self.target.port))
            .await
            .map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        let driver = tokio::spawn(async move {
            // The asker hears of a broken connection by itself.
            let _ = connection.await;
        });
        Ok(Live { sender, driver })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_http_without_a_path_is_a_target() {
        for (text, target) in [
            ("http://127.0.0.1:8080", "127.0.0.1:8080"),
            ("http://door/", "door:80"),
            ("http://[::1]:8080", "[::1]:8080"),
        ] {
            assert_eq!(text.parse::<Target>().expect(text).to_string(), target);
        }
        for bad in ["https://door", "door:8080", "http://door/path", "http://door?x=1", ""] {
            assert!(bad.parse::<Target>().is_err(), "{bad}");
        }
    }
}
