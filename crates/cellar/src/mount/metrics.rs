//! `cellar mount --metrics`: the cache's figures by HTTP, on a port or a Unix socket. Whoever reaches it may read them:
//! a socket is for its owner, and a port without an address for this machine.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Weak;
use std::time::Duration;

use cellar_client::cache::Cache;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener};

use crate::failure::Failure;

/// How long somebody who asks may take; they are answered one after the other.
const PATIENCE: Duration = Duration::from_secs(5);
/// The longest request.
const REQUEST_BYTES_MAX: usize = 8 << 10;

/// Where figures are told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Port(SocketAddr),
    Socket(PathBuf),
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.contains('/') {
            return Ok(Self::Socket(text.into()));
        }
        let port = text
            .parse::<u16>()
            .map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        port.or_else(|_| text.parse()).map(Self::Port).map_err(|_| {
            format!("'{text}' is not a place: 9107, 192.0.2.1:9107, /run/cellar.metrics")
        })
    }
}

enum Listener {
    Port(TcpListener),
    Socket(UnixListener, PathBuf),
}

/// Who tells them; nobody when it is dropped.
pub(crate) struct Metrics(tokio::task::JoinHandle<()>, Option<PathBuf>);

impl Drop for Metrics {
    fn drop(&mut self) {
        self.0.abort();
        if let Some(path) = &self.1 {
            let _gone = std::fs::remove_file(path);
        }
    }
}

impl Metrics {
    /// Begins to tell those of `cache`.
    pub(crate) async fn start(place: &Place, cache: Weak<Cache>) -> Result<Self, Failure> {
        let listener = match place {
            Place::Port(address) => TcpListener::bind(address).await.map(Listener::Port),
            Place::Socket(path) => {
                listen(path).map(|listener| Listener::Socket(listener, path.clone()))
            }
        };
        let listener =
            listener.map_err(|cause| Failure::new(format!("--metrics {place:?}: {cause}")))?;
        let path = match &listener {
            Listener::Socket(_, path) => Some(path.clone()),
            Listener::Port(_) => None,
        };
        Ok(Self(tokio::spawn(tell(listener, cache)), path))
    }
}

fn listen(path: &Path) -> std::io::Result<UnixListener> {
    UnixListener::from_std(cellar_private::socket(path)?)
}

async fn tell(listener: Listener, cache: Weak<Cache>) {
    loop {
        let told = match &listener {
            Listener::Port(listener) => match listener.accept().await {
                Ok((stream, _)) => answer(stream, &cache).await,
                Err(cause) => Err(cause),
            },
            Listener::Socket(listener, _) => match listener.accept().await {
                Ok((stream, _)) => answer(stream, &cache).await,
                Err(cause) => Err(cause),
            },
        };
        if let Err(cause) = told {
            tracing::debug!(%cause, "figures were not told");
            // No descriptors, for one, is not over at once.
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

async fn answer(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    cache: &Weak<Cache>,
) -> std::io::Result<()> {
    let work = async {
        let mut request = Vec::new();
        while !request.windows(4).any(|end| end == b"\r\n\r\n") {
            let read = stream.read_buf(&mut request).await?;
            if read == 0 || request.len() > REQUEST_BYTES_MAX {
                return Ok(());
            }
        }
        let (status, text) = match cache.upgrade() {
            Some(cache) if request.starts_with(b"GET ") => ("200 OK", cache.metrics()),
            Some(_) => ("405 Method Not Allowed", String::new()),
            None => ("503 Service Unavailable", String::new()),
        };
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            text.len()
        );
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(text.as_bytes()).await?;
        stream.shutdown().await
    };
    tokio::time::timeout(PATIENCE, work).await.unwrap_or(Ok(()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places() {
        let port = |address: &str| Ok(Place::Port(address.parse().expect("address")));
        assert_eq!("9107".parse(), port("127.0.0.1:9107"));
        assert_eq!("192.0.2.1:9107".parse(), port("192.0.2.1:9107"));
        assert_eq!("/run/m".parse(), Ok(Place::Socket("/run/m".into())));
        for wrong in ["", "m", "70000", "192.0.2.1"] {
            assert!(wrong.parse::<Place>().is_err(), "{wrong}");
        }
    }
}
