//! Metrics for Prometheus over HTTP, on a port or a Unix socket: `GET /metrics`.
//!
//! Every account that can connect may read them. A socket is open to its owner only, and a port
//! without an address is bound to the loopback address.

use std::convert::Infallible;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus_client::encoding::prometheus_text;
use prometheus_client::registry::Registry;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Semaphore;

use crate::failure::Failure;

/// The longest duration of a connection. It carries one request.
const PATIENCE: Duration = Duration::from_secs(5);
/// Connections at one time. Further ones wait until one of these ends.
const CONNECTIONS_MAX: usize = 64;
/// The longest request, and the smallest bound that hyper accepts.
const REQUEST_BYTES_MAX: usize = 8 << 10;
/// Pause after a failed accept: a lack of descriptors lasts for a while.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The address of the metrics server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MetricsAddress {
    /// A TCP port.
    Port(SocketAddr),
    /// The path of a Unix socket.
    Socket(PathBuf),
}

impl FromStr for MetricsAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.contains('/') {
            return Ok(Self::Socket(text.into()));
        }
        let port = text
            .parse::<u16>()
            .map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        port.or_else(|_| text.parse()).map(Self::Port).map_err(|_| {
            format!("'{text}' is neither a port nor a path: for example 9107, 192.0.2.1:9107 or /run/cellar.metrics")
        })
    }
}

impl fmt::Display for MetricsAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Port(address) => address.fmt(f),
            Self::Socket(path) => path.display().fmt(f),
        }
    }
}

enum Listener {
    Port(TcpListener),
    Socket(UnixListener),
}

/// A metrics server. Dropping it ends it and all of its connections.
pub(crate) struct Metrics {
    task: tokio::task::JoinHandle<()>,
    socket: Option<PathBuf>,
    #[cfg(test)]
    place: MetricsAddress,
}

impl Drop for Metrics {
    fn drop(&mut self) {
        self.task.abort();
        if let Some(path) = &self.socket {
            let _gone = std::fs::remove_file(path);
        }
    }
}

impl Metrics {
    /// Serves the metrics of `registry` at `place`.
    pub(crate) async fn start(place: &MetricsAddress, registry: Registry) -> Result<Self, Failure> {
        let listener = match place {
            MetricsAddress::Port(address) => TcpListener::bind(address).await.map(Listener::Port),
            MetricsAddress::Socket(path) => cellar_private::socket(path)
                .and_then(UnixListener::from_std)
                .map(Listener::Socket),
        };
        let listener =
            listener.map_err(|cause| Failure::new(format!("--metrics {place}: {cause}")))?;
        Ok(Self {
            #[cfg(test)]
            place: match &listener {
                Listener::Port(listener) => listener.local_addr().map(MetricsAddress::Port)?,
                Listener::Socket(_) => place.clone(),
            },
            task: tokio::spawn(accept(listener, registry)),
            socket: match place {
                MetricsAddress::Port(_) => None,
                MetricsAddress::Socket(path) => Some(path.clone()),
            },
        })
    }
}

async fn accept(listener: Listener, registry: Registry) {
    let (registry, room) = (
        Arc::new(registry),
        Arc::new(Semaphore::new(CONNECTIONS_MAX)),
    );
    // Dropping the set ends the connections.
    let mut connections = tokio::task::JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let Ok(seat) = room.clone().acquire_owned().await else {
            return;
        };
        let registry = registry.clone();
        let accepted = match &listener {
            Listener::Port(listener) => listener.accept().await.map(|(stream, _)| {
                connections.spawn(async move {
                    serve(stream, registry).await;
                    drop(seat);
                });
            }),
            Listener::Socket(listener) => listener.accept().await.map(|(stream, _)| {
                connections.spawn(async move {
                    serve(stream, registry).await;
                    drop(seat);
                });
            }),
        };
        if let Err(cause) = accepted {
            tracing::debug!(%cause, "cannot accept a connection for metrics");
            tokio::time::sleep(ACCEPT_PAUSE).await;
        }
    }
}

async fn serve(stream: impl AsyncRead + AsyncWrite + Unpin, registry: Arc<Registry>) {
    let service = service_fn(move |request| {
        let response = answer(&request, &registry);
        async move { Ok::<_, Infallible>(response) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .keep_alive(false)
        .max_buf_size(REQUEST_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service);
    match tokio::time::timeout(PATIENCE, connection).await {
        Ok(Ok(())) => (),
        Ok(Err(cause)) => tracing::debug!(%cause, "a connection for metrics failed"),
        Err(_) => tracing::debug!("a connection for metrics lasted too long"),
    }
}

fn answer(request: &Request<Incoming>, registry: &Registry) -> Response<String> {
    let says = |status: StatusCode, text: &str| {
        let mut response = Response::new(text.to_owned());
        *response.status_mut() = status;
        response
    };
    if request.uri().path() != "/metrics" {
        return says(StatusCode::NOT_FOUND, "The metrics are at /metrics.\n");
    }
    if request.method() != Method::GET && request.method() != Method::HEAD {
        let mut response = says(StatusCode::METHOD_NOT_ALLOWED, "");
        let methods = HeaderValue::from_static("GET, HEAD");
        response.headers_mut().insert(ALLOW, methods);
        return response;
    }
    let mut text = String::new();
    if prometheus_text::encode(&mut text, registry).is_err() {
        return says(StatusCode::INTERNAL_SERVER_ERROR, "");
    }
    let mut response = Response::new(text);
    let kind = HeaderValue::from_static(prometheus_text::CONTENT_TYPE);
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use prometheus_client::metrics::counter::Counter;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpStream, UnixStream};

    use super::*;

    const SCRAPE: &str = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";

    fn registry() -> Registry {
        let (mut registry, counter) = (Registry::default(), <Counter>::default());
        counter.inc_by(7);
        registry.register("cellar_tests", "Tests", counter);
        registry
    }

    async fn ask(mut stream: impl AsyncRead + AsyncWrite + Unpin, request: &str) -> String {
        let mut said = String::new();
        stream.write_all(request.as_bytes()).await.expect("write");
        stream.read_to_string(&mut said).await.expect("read");
        said
    }

    async fn on_a_port() -> (Metrics, SocketAddr) {
        let place = "127.0.0.1:0".parse().expect("place");
        let metrics = Metrics::start(&place, registry()).await.expect("start");
        let MetricsAddress::Port(address) = metrics.place else {
            panic!("{}", metrics.place)
        };
        (metrics, address)
    }

    #[test]
    fn places() {
        let port = |address: &str| Ok(MetricsAddress::Port(address.parse().expect("address")));
        assert_eq!("9107".parse(), port("127.0.0.1:9107"));
        assert_eq!("192.0.2.1:9107".parse(), port("192.0.2.1:9107"));
        assert_eq!(
            "/run/m".parse(),
            Ok(MetricsAddress::Socket("/run/m".into()))
        );
        for wrong in ["", "m", "70000", "192.0.2.1"] {
            assert!(wrong.parse::<MetricsAddress>().is_err(), "{wrong}");
        }
    }

    #[tokio::test]
    async fn a_scrape_and_other_requests() {
        let (_metrics, address) = on_a_port().await;
        let connect = || async { TcpStream::connect(address).await.expect("connect") };
        let said = ask(connect().await, SCRAPE).await;
        assert!(said.starts_with("HTTP/1.1 200 OK\r\n"), "{said}");
        let kind = "\r\ncontent-type: text/plain; version=0.0.4; charset=utf-8\r\n";
        assert!(said.contains(kind), "{said}");
        let figures = "\r\n\r\n# HELP cellar_tests_total Tests.\n\
                       # TYPE cellar_tests_total counter\ncellar_tests_total 7\n";
        assert!(said.ends_with(figures), "{said}");
        for (request, status) in [
            (SCRAPE.replace("GET", "HEAD"), "200"),
            (SCRAPE.replace("GET", "POST"), "405"),
            (SCRAPE.replace("/metrics", "/"), "404"),
            (SCRAPE.replace("HTTP/1.1", "nonsense"), "400"),
            (format!("GET /{} HTTP/1.1\r\n", "a".repeat(9_000)), "4"),
        ] {
            let said = ask(connect().await, &request).await;
            assert!(said.starts_with(&format!("HTTP/1.1 {status}")), "{said}");
            assert!(!said.contains("cellar_tests"), "{said}");
        }
    }

    #[tokio::test]
    async fn idle_connections_delay_no_scrape() {
        let (_metrics, address) = on_a_port().await;
        let mut idle = Vec::new();
        for _ in 0..20 {
            idle.push(TcpStream::connect(address).await.expect("connect"));
        }
        let stream = TcpStream::connect(address).await.expect("connect");
        let scrape = tokio::time::timeout(Duration::from_secs(1), ask(stream, SCRAPE));
        assert!(scrape.await.expect("in time").contains("200 OK"));
    }

    /// If there are more idle connections than allowed, a scrape waits until they time out.
    #[tokio::test]
    async fn idle_connections_are_ended() {
        let (_metrics, address) = on_a_port().await;
        let mut idle = Vec::new();
        for _ in 0..CONNECTIONS_MAX + 1 {
            idle.push(TcpStream::connect(address).await.expect("connect"));
        }
        let stream = TcpStream::connect(address).await.expect("connect");
        let scrape = tokio::time::timeout(PATIENCE * 3, ask(stream, SCRAPE));
        assert!(scrape.await.expect("in time").contains("200 OK"));
        assert_eq!(idle[0].read(&mut [0]).await.ok(), Some(0));
    }

    #[tokio::test]
    async fn a_socket_is_for_its_owner() {
        let directory = tempfile::tempdir().expect("directory");
        let path = directory.path().join("metrics");
        let place = MetricsAddress::Socket(path.clone());
        let metrics = Metrics::start(&place, registry()).await.expect("start");
        let about = std::fs::metadata(&path).expect("socket");
        assert_eq!(about.permissions().mode() & 0o777, 0o600);
        let stream = UnixStream::connect(&path).await.expect("connect");
        assert!(ask(stream, SCRAPE).await.contains("cellar_tests_total 7"));
        drop(metrics);
        assert!(!path.exists());
    }
}
