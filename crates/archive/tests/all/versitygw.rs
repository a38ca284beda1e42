//! An archive in a bucket of versitygw, a server of S3 of its own project, over a directory.
//!
//! `dev/versitygw` builds the server. Without it, the tests are skipped.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use cellar_archive::{Archive, CredentialSource, Error, Location, S3Location, Settings};

use crate::bytes_of::{CELL, Held, expected, key, random};
use crate::contract;

const ACCESS: &str = "cell";
const SECRET: &str = "secret-of-the-cell";
const BUCKET: &str = "archive";

/// A running server. It is killed when it is dropped.
struct Server {
    process: Child,
    port: u16,
    home: tempfile::TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Server {
    /// Starts the server with one bucket; `None`, with a line, if it is not there.
    async fn start() -> Option<Self> {
        Self::start_with(tempfile::tempdir().unwrap(), &[]).await
    }

    /// The same with more options, and files in a directory.
    async fn start_with(home: tempfile::TempDir, options: &[String]) -> Option<Self> {
        let found = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../dev/versitygw"))
            .arg("--find")
            .output()
            .unwrap();
        if !found.status.success() {
            eprintln!("skipped: no versitygw; dev/versitygw builds it");
            return None;
        }
        let program = String::from_utf8(found.stdout).unwrap();
        for directory in ["buckets/archive", "metadata"] {
            std::fs::create_dir_all(home.path().join(directory)).unwrap();
        }
        // The port is free at this moment. If another program takes it, the test fails with a name.
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        let log = std::fs::File::create(home.path().join("log")).unwrap();
        let process = Command::new(program.trim())
            .args([
                "--port",
                &format!("127.0.0.1:{port}"),
                "--quiet",
                "--access",
                ACCESS,
            ])
            .args(["--secret", SECRET])
            .args(options)
            .args(["posix", "--sidecar"])
            .args([home.path().join("metadata"), home.path().join("buckets")])
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut server = Self {
            process,
            port,
            home,
        };
        cellar_until::until("versitygw answers", async || {
            let log = server.home.path().join("log");
            let ended = server.process.try_wait().unwrap();
            assert!(ended.is_none(), "{}", std::fs::read_to_string(log).unwrap());
            tokio::net::TcpStream::connect(("127.0.0.1", port))
                .await
                .is_ok()
        })
        .await;
        Some(server)
    }

    fn location(&self, prefix: &str, secret: &str) -> Location {
        let file = self.home.path().join(format!("key-{}", secret.len()));
        let text = format!("aws_access_key_id = {ACCESS}\naws_secret_access_key = {secret}\n");
        cellar_private::replace(&file, text.as_bytes()).unwrap();
        Location::S3(S3Location {
            endpoint: format!("http://127.0.0.1:{}", self.port),
            bucket: BUCKET.to_owned(),
            prefix: prefix.to_owned(),
            region: "us-east-1".to_owned(),
            credentials: CredentialSource::File(file),
            path_style: true,
        })
    }

    /// The directory of the bucket.
    fn bucket(&self) -> std::path::PathBuf {
        self.home.path().join("buckets").join(BUCKET)
    }
}

#[tokio::test]
async fn versitygw_keeps_the_rules() {
    let Some(server) = Server::start().await else {
        return;
    };
    contract::holds(&server.location("", SECRET), Settings::default()).await;
    contract::holds(&server.location("cells/two", SECRET), Settings::default()).await;
}

#[tokio::test]
async fn versitygw_refuses_wrong_keys_and_missing_buckets() {
    let Some(server) = Server::start().await else {
        return;
    };
    let settings = Settings::default();
    let wrong = server.location("", "another secret");
    let created = Archive::create(&wrong, settings, CELL, "example.org", 1)
        .await
        .unwrap_err();
    assert!(matches!(created, Error::Refused(_)), "{created}");
    assert_eq!(std::fs::read_dir(server.bucket()).unwrap().count(), 0);
    std::fs::remove_dir(server.bucket()).unwrap();
    let right = server.location("", SECRET);
    let created = Archive::create(&right, settings, CELL, "example.org", 1)
        .await
        .unwrap_err();
    assert!(matches!(created, Error::Configuration(_)), "{created}");
}

/// Bytes that change on the server's disk, and a server that is killed in the middle of its life.
#[tokio::test]
async fn damage_and_death_of_versitygw_are_told_apart() {
    let Some(server) = Server::start().await else {
        return;
    };
    let location = server.location("", SECRET);
    let settings = Settings::default();
    let identity = Archive::create(&location, settings, CELL, "example.org", 1)
        .await
        .unwrap();
    let expected = expected(identity.archive, 0, 0);
    let archive = Archive::open(&location, settings, &expected).await.unwrap();
    let length = 12 << 20;
    let put = archive
        .put(&key(2, 1), length, &mut Held(random(length as usize, 1)))
        .await;
    let put = put.unwrap();
    archive.verify(&key(2, 1), &put).await.unwrap();

    let file = server.bucket().join(format!("objects/{}", key(2, 1)));
    flip(&file, length / 2);
    let found = archive.verify(&key(2, 1), &put).await.unwrap_err();
    assert!(matches!(found, Error::WrongBytes { .. }), "{found}");
    flip(&file, length / 2);
    archive.verify(&key(2, 1), &put).await.unwrap();
    std::fs::remove_file(&file).unwrap();
    let found = archive.verify(&key(2, 1), &put).await.unwrap_err();
    assert!(matches!(found, Error::Missing(_)), "{found}");

    drop(server);
    let gone = archive.check().await.unwrap_err();
    assert!(matches!(gone, Error::Down(_)), "{gone}");
}

/// A server with a certificate of its own. The test runs itself again with the variable that names
/// the certificate, because a test must not change its own environment.
#[tokio::test]
async fn a_server_with_tls_is_reached_if_its_certificate_is_trusted() {
    const HOME: &str = "CELLAR_TEST_TLS_HOME";
    if let Ok(inner) = std::env::var(HOME) {
        return reach_with_tls(&inner).await;
    }
    let home = tempfile::tempdir().unwrap();
    let at = |name: &str| home.path().join(name).display().to_string();
    let (certificate, private_key) = (at("certificate"), at("private-key"));
    let made = Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
        ])
        .args([
            "-keyout",
            &private_key,
            "-out",
            &certificate,
            "-days",
            "2",
            "-subj",
            "/CN=archive",
        ])
        .args([
            "-addext",
            "subjectAltName=IP:127.0.0.1",
            "-addext",
            "basicConstraints=CA:FALSE",
        ])
        .output();
    if !made.is_ok_and(|made| made.status.success()) {
        eprintln!("skipped: no openssl that makes certificates (Debian: openssl)");
        return;
    }
    let options = ["--cert", &certificate, "--key", &private_key].map(str::to_owned);
    let Some(server) = Server::start_with(home, &options).await else {
        return;
    };
    let inner = format!("{} {}", server.port, server.home.path().display());
    for (trusted, is_reached) in [(true, true), (false, false)] {
        let mut again = Command::new(std::env::current_exe().unwrap());
        again.args(["--exact", "--nocapture"]);
        again.arg("versitygw::a_server_with_tls_is_reached_if_its_certificate_is_trusted");
        again.env(HOME, format!("{inner} {is_reached}"));
        if trusted {
            again.env("SSL_CERT_FILE", &certificate);
        }
        let output = again.output().unwrap();
        let said =
            String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success() && said.contains("1 passed"),
            "{said}"
        );
    }
}

async fn reach_with_tls(inner: &str) {
    let mut words = inner.split(' ');
    let (port, home, is_reached) = (words.next(), words.next(), words.next());
    let location = Location::S3(S3Location {
        endpoint: format!("https://127.0.0.1:{}", port.unwrap()),
        bucket: BUCKET.to_owned(),
        prefix: String::new(),
        region: "us-east-1".to_owned(),
        credentials: {
            let file = Path::new(home.unwrap()).join("key");
            let text = format!("aws_access_key_id={ACCESS}\naws_secret_access_key={SECRET}\n");
            cellar_private::replace(&file, text.as_bytes()).unwrap();
            CredentialSource::File(file)
        },
        path_style: true,
    });
    let settings = Settings::default();
    match is_reached {
        Some("true") => contract::holds(&location, settings).await,
        _ => {
            let refused = Archive::identify(&location, settings).await.unwrap_err();
            assert!(!matches!(refused, Error::Refused(_)), "{refused}");
        }
    }
}

/// Changes one bit of a file.
fn flip(file: &Path, at: u64) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::options()
        .read(true)
        .write(true)
        .open(file)
        .unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
}
