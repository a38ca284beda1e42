//! The sockets of the console: the login, and TLS.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use cellar_console::auth::{Gate, Role};
use cellar_console::{Certificate, LoginSocket, request_login};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::requests::TestConsole;

#[tokio::test]
async fn a_login_is_asked_for_at_the_socket() {
    let directory = tempfile::tempdir().expect("directory");
    let path = directory.path().join("below/socket");
    let missing = request_login(&path, Role::Reader).await;
    assert!(missing.is_err());
    let gate = Arc::new(Gate::new(false));
    let socket = LoginSocket::listen(&path).expect("socket");
    let mode = std::fs::metadata(&path).expect("socket").permissions();
    assert_eq!(mode.mode() & 0o777, 0o600);
    assert!(LoginSocket::listen(&path).is_err(), "one console at a time");
    let served = gate.clone();
    let serving = tokio::spawn(async move { socket.serve(served, "http://here").await });
    for role in [Role::Reader, Role::Administrator] {
        let address = request_login(&path, role).await.expect("address");
        let token = address.strip_prefix("http://here/login?token=");
        let secret = gate.redeem(token.expect("token")).expect("session");
        assert_eq!(gate.session(&secret).expect("session").role, role);
    }
    serving.abort();
    let _ended = serving.await;
    assert!(!path.exists(), "the socket is removed");
}

/// The answer to a request for the login page over TLS. `trusted`: the certificate to accept.
async fn ask_over_tls(address: SocketAddr, trusted: &str) -> Option<String> {
    let mut roots = rustls::RootCertStore::empty();
    let certificate = CertificateDer::from_pem_slice(trusted.as_bytes()).expect("certificate");
    roots.add(certificate).expect("root");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let stream = TcpStream::connect(address).await.expect("connection");
    let name = "console.test".try_into().expect("name");
    let mut stream = connector.connect(name, stream).await.ok()?;
    let request = "GET /login HTTP/1.1\r\nHost: console.test\r\nConnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).await.expect("request");
    let mut text = String::new();
    stream.read_to_string(&mut text).await.expect("answer");
    Some(text)
}

#[tokio::test]
async fn pages_come_over_tls_and_damaged_files_change_nothing() {
    let (certificate, key) = (include_str!("certificate.pem"), include_str!("key.pem"));
    let directory = tempfile::tempdir().expect("directory");
    let place = |name: &str| directory.path().join(name);
    let (first, second) = (place("certificate"), place("key"));
    std::fs::write(&first, certificate).expect("file");
    std::fs::write(&second, "no key").expect("file");
    let wrong = Certificate::load(&first, &second).err().expect("refused");
    assert!(wrong.to_string().contains("key"), "{wrong}");
    std::fs::write(&second, key).expect("file");
    let loaded = Certificate::load(&first, &second).expect("certificate");

    let console = TestConsole::of(crate::requests::silent_cell(), true);
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("listener");
    let address = listener.local_addr().expect("address");
    let router = console.router.clone();
    let serving = tokio::spawn(cellar_console::serve(
        listener,
        Some(Arc::new(loaded)),
        router,
    ));
    let text = ask_over_tls(address, certificate).await.expect("answer");
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
    assert!(text.contains("content-security-policy"), "{text}");

    // Damaged files leave the old certificate in use.
    let later = SystemTime::now() + Duration::from_secs(10);
    let file = std::fs::File::create(&first).expect("file");
    file.set_modified(later).expect("time");
    assert!(ask_over_tls(address, certificate).await.is_some());
    // A connection without TLS gets no answer.
    let mut plain = TcpStream::connect(address).await.expect("connection");
    let request = "GET /login HTTP/1.1\r\nHost: console.test\r\n\r\n";
    plain.write_all(request.as_bytes()).await.expect("request");
    let mut answer = Vec::new();
    let _closed = plain.read_to_end(&mut answer).await;
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
    serving.abort();
}
