//! The sockets of the console: bounds of connections, TLS, HTTP.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::tls::Certificate;

/// Connections at one time. Further ones wait until one of these ends.
const CONNECTIONS_MAX: usize = 256;
/// The longest time for a handshake of TLS, and for the head of a request.
const HEAD_TIME: Duration = Duration::from_secs(10);
/// The longest time of a connection. Browsers open another one.
const CONNECTION_TIME: Duration = Duration::from_secs(300);
/// The longest head of a request in bytes.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// Pause after a failed accept: a lack of descriptors lasts for a while.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Refuses an address that other machines can reach, if there is no certificate.
///
/// # Errors
/// A sentence for the user.
pub fn check_address(address: SocketAddr, has_certificate: bool) -> Result<(), String> {
    if has_certificate || address.ip().is_loopback() {
        return Ok(());
    }
    Err(format!(
        "--listen {address}: other machines can reach this address, so the console needs TLS. Add \
         --tls-certificate FILE and --tls-key FILE, or listen on 127.0.0.1:{}",
        address.port()
    ))
}

/// Serves `router` until the future is dropped.
pub async fn serve(listener: TcpListener, certificate: Option<Arc<Certificate>>, router: Router) {
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    // Dropping the set ends the connections.
    let mut connections = tokio::task::JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let Ok(seat) = room.clone().acquire_owned().await else {
            return;
        };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(cause) => {
                tracing::debug!(%cause, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let (certificate, router) = (certificate.clone(), router.clone());
        connections.spawn(async move {
            match certificate {
                None => answer(stream, router).await,
                Some(certificate) => {
                    let handshake = certificate.acceptor().accept(stream);
                    match tokio::time::timeout(HEAD_TIME, handshake).await {
                        Ok(Ok(stream)) => answer(stream, router).await,
                        Ok(Err(cause)) => tracing::debug!(%cause, "a handshake of TLS failed"),
                        Err(_) => tracing::debug!("a handshake of TLS took too long"),
                    }
                }
            }
            drop(seat);
        });
    }
}

async fn answer(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, router: Router) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    match tokio::time::timeout(CONNECTION_TIME, connection).await {
        Ok(Ok(())) => (),
        Ok(Err(cause)) => tracing::debug!(%cause, "a connection failed"),
        Err(_) => tracing::debug!("a connection lasted too long"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_other_machines_need_tls() {
        for (address, has_certificate, is_well) in [
            ("127.0.0.1:8080", false, true),
            ("[::1]:8080", false, true),
            ("0.0.0.0:8080", false, false),
            ("192.0.2.1:8080", false, false),
            ("[::]:8080", false, false),
            ("0.0.0.0:8080", true, true),
        ] {
            let address = address.parse().expect("address");
            let checked = check_address(address, has_certificate);
            assert_eq!(checked.is_ok(), is_well, "{address}");
            if let Err(sentence) = checked {
                assert!(sentence.contains("needs TLS"), "{sentence}");
            }
        }
    }
}
