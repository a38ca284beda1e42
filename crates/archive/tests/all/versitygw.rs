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
        let found = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../dev/versitygw"))
            .arg("--find")
            .output()
            .unwrap();
        if !found.status.success() {
            eprintln!("skipped: no versitygw; dev/versitygw builds it");
            return None;
        }
        let program = String::from_utf8(found.stdout).unwrap();
        let home = tempfile::tempdir().unwrap();
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
            .args(["--secret", SECRET, "posix", "--sidecar"])
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
