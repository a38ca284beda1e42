//! The HTTP server of a daemon's metrics.
//!
//! It has a thread of its own, so a scrape never delays calls and is answered while the daemon's
//! threads are busy.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use futures_util::future::BoxFuture;
use hyper::body::Incoming;
use hyper::header::{ALLOW, AUTHORIZATION, CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::RwLock;
use prometheus_client::encoding::prometheus_text;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{Semaphore, oneshot};

use super::{MetricsAddress, MetricsOptions, Token};
use crate::failure::{Failure, Outcome};

/// The longest duration of a connection. It carries one request.
const PATIENCE: Duration = Duration::from_secs(5);
/// Connections at one time. Further ones wait until one of these ends.
const CONNECTIONS_MAX: usize = 64;
/// The longest request, and the smallest bound that hyper accepts.
const REQUEST_BYTES_MAX: usize = 8 << 10;
/// Pause after a failed accept: a lack of descriptors lasts for a while.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The pages of a daemon.
pub(crate) trait Pages: Send + Sync + 'static {
    /// All metrics, in the text format of Prometheus; `None` if they cannot be had.
    fn metrics(&self) -> BoxFuture<'_, Option<String>>;

    /// The same for single volumes; `None` if the daemon has no volumes.
    fn volumes(&self) -> BoxFuture<'_, Option<String>> {
        Box::pin(async { None })
    }

    /// Parts of the daemon that do not serve, each as a sentence without a full stop.
    fn problems(&self) -> Vec<String>;
}

/// A metrics server. Dropping it ends it and all of its connections.
pub(crate) struct Metrics {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
    socket: Option<PathBuf>,
    place: MetricsAddress,
    token: SharedToken,
}

/// The token that readers need now.
type SharedToken = Arc<RwLock<Option<Token>>>;

impl Drop for Metrics {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _panicked = thread.join();
        }
        if let Some(path) = &self.socket {
            let _gone = std::fs::remove_file(path);
        }
    }
}

impl MetricsOptions {
    /// Reserves the place for the metrics; `None` if the user wants none. A daemon does so before
    /// it changes anything, because an address can be in use.
    pub(crate) fn listen(&self) -> Outcome<Option<Reserved>> {
        let Some(place) = &self.metrics else {
            return Ok(None);
        };
        let token = self.metrics_token.as_deref().map(Token::read).transpose()?;
        check_token(place, token.as_ref())?;
        Reserved::new(place, token).map(Some)
    }
}

/// Refuses an address that other machines can reach, if there is no token.
fn check_token(place: &MetricsAddress, token: Option<&Token>) -> Outcome {
    match place {
        MetricsAddress::Port(address) if !address.ip().is_loopback() && token.is_none() => {
            Err(Failure::usage(format!(
                "--metrics {place}: other machines can reach this address; add --metrics-token FILE, \
                 or use 127.0.0.1:{}",
                address.port()
            )))
        }
        _ => Ok(()),
    }
}

/// A place for metrics, before there are any.
#[derive(Debug)]
pub(crate) struct Reserved {
    listener: Listener,
    token: Option<Token>,
    place: MetricsAddress,
}

#[derive(Debug)]
enum Listener {
    Port(std::net::TcpListener),
    Socket(std::os::unix::net::UnixListener),
}

impl Reserved {
    fn new(place: &MetricsAddress, token: Option<Token>) -> Outcome<Self> {
        let listener = match place {
            MetricsAddress::Port(address) => {
                std::net::TcpListener::bind(address).and_then(|port| {
                    port.set_nonblocking(true)?;
                    Ok(Listener::Port(port))
                })
            }
            MetricsAddress::Socket(path) => cellar_private::socket(path).map(Listener::Socket),
        };
        let listener =
            listener.map_err(|cause| Failure::new(format!("--metrics {place}: {cause}")))?;
        let place = match &listener {
            Listener::Port(port) => MetricsAddress::Port(port.local_addr()?),
            Listener::Socket(_) => place.clone(),
        };
        Ok(Self {
            listener,
            token,
            place,
        })
    }

    /// Serves `pages` there, on a new thread.
    pub(crate) fn serve(self, pages: Arc<dyn Pages>) -> Outcome<Metrics> {
        let failed = |cause: std::io::Error| Failure::new(format!("--metrics: {cause}"));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(failed)?;
        let (stop, stopped) = oneshot::channel::<()>();
        let socket = match &self.place {
            MetricsAddress::Port(_) => None,
            MetricsAddress::Socket(path) => Some(path.clone()),
        };
        let place = self.place.clone();
        let token: SharedToken = Arc::new(RwLock::new(self.token));
        let site = Arc::new(Site {
            pages,
            token: token.clone(),
        });
        let listener = self.listener;
        let thread = thread::Builder::new()
            .name("metrics".to_owned())
            .spawn(move || {
                runtime.block_on(async {
                    tokio::select! {
                        () = accept(listener, site) => (),
                        _ = stopped => (),
                    }
                });
            })
            .map_err(failed)?;
        Ok(Metrics {
            stop: Some(stop),
            thread: Some(thread),
            socket,
            place,
            token,
        })
    }
}

impl Metrics {
    /// Reads the token again; later requests need the new one.
    ///
    /// # Errors
    /// The file holds no token, or one is needed. The old token stays in force.
    pub(crate) fn read_token(&self, file: Option<&Path>) -> Outcome {
        let token = file.map(Token::read).transpose()?;
        check_token(&self.place, token.as_ref())?;
        *self.token.write() = token;
        Ok(())
    }

    /// The place where it serves, with the port that the system chose.
    pub(crate) fn place(&self) -> &MetricsAddress {
        &self.place
    }
}

struct Site {
    pages: Arc<dyn Pages>,
    token: SharedToken,
}

async fn accept(listener: Listener, site: Arc<Site>) {
    match listener {
        Listener::Port(port) => match TcpListener::from_std(port) {
            Ok(port) => {
                accept_from(async || port.accept().await.map(|(stream, _)| stream), site).await
            }
            Err(cause) => tracing::error!(%cause, "metrics are not served"),
        },
        Listener::Socket(socket) => match UnixListener::from_std(socket) {
            Ok(socket) => {
                accept_from(
                    async || socket.accept().await.map(|(stream, _)| stream),
                    site,
                )
                .await;
            }
            Err(cause) => tracing::error!(%cause, "metrics are not served"),
        },
    }
}

async fn accept_from<S>(next: impl AsyncFn() -> std::io::Result<S>, site: Arc<Site>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    // Dropping the set ends the connections.
    let mut connections = tokio::task::JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let Ok(seat) = room.clone().acquire_owned().await else {
            return;
        };
        match next().await {
            Ok(stream) => {
                let site = site.clone();
                connections.spawn(async move {
                    serve(stream, site).await;
                    drop(seat);
                });
            }
            Err(cause) => {
                tracing::debug!(%cause, "cannot accept a connection for metrics");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn serve(stream: impl AsyncRead + AsyncWrite + Unpin, site: Arc<Site>) {
    let service = service_fn(move |request| {
        let site = site.clone();
        async move { Ok::<_, Infallible>(site.answer(&request).await) }
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

impl Site {
    async fn answer(&self, request: &Request<Incoming>) -> Response<String> {
        if request.method() != Method::GET && request.method() != Method::HEAD {
            let mut response = plain(StatusCode::METHOD_NOT_ALLOWED, String::new());
            let methods = HeaderValue::from_static("GET, HEAD");
            response.headers_mut().insert(ALLOW, methods);
            return response;
        }
        // Health tells no figures, and probes of load balancers have no token.
        match request.uri().path() {
            "/healthz" => return plain(StatusCode::OK, "ok\n".to_owned()),
            "/readyz" => return self.ready(),
            _ => (),
        }
        let token = self.token.read().clone();
        if let Some(token) = token {
            let sent = request.headers().get(AUTHORIZATION);
            if !token.is_in(sent.map(HeaderValue::as_bytes)) {
                let text = "The metrics need a token: 'Authorization: Bearer TOKEN'.\n";
                let mut response = plain(StatusCode::UNAUTHORIZED, text.to_owned());
                let scheme = HeaderValue::from_static("Bearer");
                response.headers_mut().insert(WWW_AUTHENTICATE, scheme);
                return response;
            }
        }
        let text = match request.uri().path() {
            "/metrics" => self.pages.metrics().await,
            "/metrics/volumes" => match self.pages.volumes().await {
                Some(text) => Some(text),
                None => {
                    return plain(
                        StatusCode::NOT_FOUND,
                        "No volumes are served here.\n".to_owned(),
                    );
                }
            },
            _ => {
                let text = "The metrics are at /metrics.\n".to_owned();
                return plain(StatusCode::NOT_FOUND, text);
            }
        };
        let Some(text) = text else {
            return plain(StatusCode::SERVICE_UNAVAILABLE, String::new());
        };
        let mut response = Response::new(text);
        let kind = HeaderValue::from_static(prometheus_text::CONTENT_TYPE);
        response.headers_mut().insert(CONTENT_TYPE, kind);
        response
    }

    fn ready(&self) -> Response<String> {
        let problems = self.pages.problems();
        if problems.is_empty() {
            return plain(StatusCode::OK, "ready\n".to_owned());
        }
        let lines = problems.iter().map(|problem| format!("{problem}\n"));
        plain(StatusCode::SERVICE_UNAVAILABLE, lines.collect())
    }
}

fn plain(status: StatusCode, text: String) -> Response<String> {
    let mut response = Response::new(text);
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::os::unix::fs::PermissionsExt;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpStream, UnixStream};

    use super::*;

    const SCRAPE: &str = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";

    /// Pages with one figure, and with the given problems.
    struct Fixed(Vec<String>);

    impl Pages for Fixed {
        fn metrics(&self) -> BoxFuture<'_, Option<String>> {
            Box::pin(async { Some("cellar_tests_total 7\n".to_owned()) })
        }

        fn problems(&self) -> Vec<String> {
            self.0.clone()
        }
    }

    fn start(place: &MetricsAddress, token: Option<Token>, problems: &[&str]) -> Metrics {
        let problems = problems.iter().map(|text| (*text).to_owned()).collect();
        let reserved = Reserved::new(place, token).expect("place");
        reserved.serve(Arc::new(Fixed(problems))).expect("start")
    }

    fn address(metrics: &Metrics) -> SocketAddr {
        match metrics.place() {
            MetricsAddress::Port(address) => *address,
            place => panic!("{place}"),
        }
    }

    fn on_a_port() -> (Metrics, SocketAddr) {
        let metrics = start(&"127.0.0.1:0".parse().expect("place"), None, &[]);
        let address = address(&metrics);
        (metrics, address)
    }

    async fn ask(mut stream: impl AsyncRead + AsyncWrite + Unpin, request: &str) -> String {
        let mut said = String::new();
        stream.write_all(request.as_bytes()).await.expect("write");
        stream.read_to_string(&mut said).await.expect("read");
        said
    }

    async fn get(address: SocketAddr, path: &str, header: &str) -> String {
        let stream = TcpStream::connect(address).await.expect("connect");
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{header}\r\n");
        ask(stream, &request).await
    }

    #[tokio::test]
    async fn health_and_readiness() {
        let (_metrics, ready) = on_a_port();
        assert!(get(ready, "/healthz", "").await.ends_with("\r\n\r\nok\n"));
        assert!(get(ready, "/readyz", "").await.ends_with("\r\n\r\nready\n"));
        let place = "127.0.0.1:0".parse().expect("place");
        let metrics = start(&place, None, &["partition /vicepb takes no changes", "x"]);
        let said = get(address(&metrics), "/readyz", "").await;
        assert!(said.starts_with("HTTP/1.1 503 "), "{said}");
        assert!(
            said.ends_with("\r\n\r\npartition /vicepb takes no changes\nx\n"),
            "{said}"
        );
        let said = get(address(&metrics), "/healthz", "").await;
        assert!(said.starts_with("HTTP/1.1 200 "), "{said}");
        let said = get(ready, "/metrics/volumes", "").await;
        assert!(said.starts_with("HTTP/1.1 404 "), "{said}");
    }

    #[tokio::test]
    async fn a_token_guards_the_figures_and_not_the_health() {
        let directory = tempfile::tempdir().expect("directory");
        let file = directory.path().join("token");
        std::fs::write(&file, " 0123456789abcdef\n").expect("file");
        let token = Token::read(&file).expect("token");
        let place = "127.0.0.1:0".parse().expect("place");
        let metrics = start(&place, Some(token), &[]);
        let address = address(&metrics);
        for wrong in [
            "",
            "Authorization: Bearer 0123456789abcde\r\n",
            "Authorization: Basic 0123456789abcdef\r\n",
        ] {
            for page in ["/metrics", "/metrics/volumes", "/other"] {
                let said = get(address, page, wrong).await;
                assert!(said.starts_with("HTTP/1.1 401 "), "{said}");
                assert!(said.contains("\r\nwww-authenticate: Bearer\r\n"), "{said}");
            }
        }
        let right = "Authorization: Bearer 0123456789abcdef\r\n";
        assert!(
            get(address, "/metrics", right)
                .await
                .contains("tests_total 7")
        );
        assert!(get(address, "/healthz", "").await.contains(" 200 OK"));
        std::fs::write(&file, "short").expect("file");
        assert!(Token::read(&file).is_err());
    }

    #[test]
    fn an_address_of_others_needs_a_token() {
        let options = MetricsOptions {
            metrics: Some("192.0.2.1:9100".parse().expect("place")),
            metrics_token: None,
        };
        let failure = options.listen().expect_err("refused").to_string();
        assert!(failure.contains("add --metrics-token FILE"), "{failure}");
    }

    #[tokio::test]
    async fn a_scrape_and_other_requests() {
        let (_metrics, address) = on_a_port();
        let connect = || async { TcpStream::connect(address).await.expect("connect") };
        let said = ask(connect().await, SCRAPE).await;
        assert!(said.starts_with("HTTP/1.1 200 OK\r\n"), "{said}");
        let kind = "\r\ncontent-type: text/plain; version=0.0.4; charset=utf-8\r\n";
        assert!(said.contains(kind), "{said}");
        assert!(said.ends_with("\r\n\r\ncellar_tests_total 7\n"), "{said}");
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
        let (_metrics, address) = on_a_port();
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
        let (_metrics, address) = on_a_port();
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
        let metrics = start(&place, None, &[]);
        let about = std::fs::metadata(&path).expect("socket");
        assert_eq!(about.permissions().mode() & 0o777, 0o600);
        let stream = UnixStream::connect(&path).await.expect("connect");
        assert!(ask(stream, SCRAPE).await.contains("cellar_tests_total 7"));
        drop(metrics);
        assert!(!path.exists());
    }
}
