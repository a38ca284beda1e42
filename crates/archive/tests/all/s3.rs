//! An archive in a bucket, whose server misbehaves.

use std::sync::Arc;
use std::time::Duration;

use cellar_archive::{Archive, Error, Location, Receipt, S3Location, Settings};

use crate::bytes_of::{CELL, Held, Kept, expected, key, random};
use crate::contract;
use crate::faulty::{Fault, Faulty};

/// Short, because a test waits for it.
const SETTINGS: Settings = Settings {
    patience: Duration::from_millis(400),
    recall_patience: Duration::from_millis(400),
    parallel: 4,
};

/// Long enough for a busy machine.
const PATIENT: Settings = Settings {
    patience: Duration::from_secs(60),
    recall_patience: Duration::from_secs(60),
    parallel: 4,
};

struct Bench {
    home: tempfile::TempDir,
    server: Arc<Faulty>,
    archive: Archive,
    /// A copy of 9 MiB that was written before anything misbehaves.
    receipt: Receipt,
}

const LENGTH: usize = 9 << 20;

async fn bench(settings: Settings) -> Bench {
    let home = tempfile::tempdir().unwrap();
    let server = Faulty::start().await;
    let location = server.good(&home);
    let identity = Archive::create(&location, PATIENT, CELL, "example.org", 1)
        .await
        .unwrap();
    let expected = expected(identity.archive, 0, 0);
    let patient = Archive::open(&location, PATIENT, &expected).await.unwrap();
    let put = patient
        .put(&key(2, 1), LENGTH as u64, &mut Held(random(LENGTH, 2)))
        .await;
    Bench {
        archive: Archive::open(&location, settings, &expected).await.unwrap(),
        receipt: put.unwrap(),
        home,
        server,
    }
}

impl Bench {
    /// Puts a small and a large copy: the errors.
    async fn puts(&self) -> [Error; 2] {
        [
            self.put(4, 1000).await.unwrap_err(),
            self.put(6, LENGTH).await.unwrap_err(),
        ]
    }

    async fn put(&self, vnode: u32, length: usize) -> Result<Receipt, Error> {
        let mut source = Held(random(length, 7));
        self.archive
            .put(&key(vnode, 1), length as u64, &mut source)
            .await
    }

    /// The error of a get, whose sink must not be finished.
    async fn get(&self) -> Error {
        let mut sink = Kept::default();
        let got = self
            .archive
            .get(&key(2, 1), &self.receipt, &mut sink)
            .await
            .unwrap_err();
        assert!(!sink.is_finished);
        got
    }

    /// The server behaves again: the old copy is there, failed puts left nothing, and can be
    /// repeated.
    async fn recovers(&self) {
        self.server.set(Fault::None);
        let location = self.server.good(&self.home);
        let expected = expected(self.archive.identity().archive, 0, 1);
        let archive = Archive::open(&location, PATIENT, &expected).await.unwrap();
        let mut sink = Kept::default();
        archive
            .get(&key(2, 1), &self.receipt, &mut sink)
            .await
            .unwrap();
        assert!(sink.is_finished && sink.bytes == random(LENGTH, 2));
        for (vnode, length) in [(4, 1000), (6, LENGTH)] {
            let mut source = Held(random(length, 7));
            let put = archive
                .put(&key(vnode, 1), length as u64, &mut source)
                .await
                .unwrap();
            archive.verify(&key(vnode, 1), &put).await.unwrap();
        }
        cellar_until::until("uploads are aborted", async || {
            self.server.uploads.lock().unwrap().is_empty()
        })
        .await;
    }
}

#[tokio::test]
async fn a_bucket_keeps_the_rules() {
    let home = tempfile::tempdir().unwrap();
    let server = Faulty::start().await;
    contract::holds(&server.good(&home), PATIENT).await;
    let names: Vec<_> = server.objects.lock().unwrap().keys().cloned().collect();
    assert!(
        names.iter().all(|name| name.starts_with("cells/one/")),
        "{names:?}"
    );
    cellar_until::until("uploads are aborted", async || {
        server.uploads.lock().unwrap().is_empty()
    })
    .await;
}

#[tokio::test]
async fn a_lie_about_success_is_noticed_at_once() {
    let bench = bench(PATIENT).await;
    // The session is there already: its object must not be a lie.
    bench.archive.remove(&key(100, 1)).await.unwrap();
    bench.server.set(Fault::Lies);
    for error in bench.puts().await {
        assert!(matches!(error, Error::Missing(_)), "{error}");
    }
    bench.server.set(Fault::Halves);
    for error in bench.puts().await {
        assert!(matches!(error, Error::WrongBytes { .. }), "{error}");
    }
    // Half copies are in the way of the right ones, and are not overwritten.
    bench.server.set(Fault::None);
    for error in bench.puts().await {
        assert!(matches!(error, Error::Exists(_)), "{error}");
    }
    for vnode in [4, 6] {
        bench.archive.remove(&key(vnode, 1)).await.unwrap();
    }
    bench.recovers().await;
}

#[tokio::test]
async fn other_bytes_are_never_delivered() {
    let bench = bench(PATIENT).await;
    bench.server.set(Fault::OtherByte);
    let got = bench.get().await;
    assert!(matches!(&got, Error::WrongBytes { reason, .. } if reason == "BLAKE3 differs"));
    let found = bench
        .archive
        .verify(&key(2, 1), &bench.receipt)
        .await
        .unwrap_err();
    assert!(matches!(found, Error::WrongBytes { .. }), "{found}");
    bench.recovers().await;
}

#[tokio::test]
async fn a_server_that_stalls_is_slow() {
    let bench = bench(SETTINGS).await;
    for operation in ["create", "put part", "complete", "head"] {
        bench.server.set(Fault::Stalls(operation));
        let error = bench.put(6, LENGTH).await.unwrap_err();
        assert!(
            matches!(error, Error::Slow(_)) && error.is_transient(),
            "{operation}: {error}"
        );
    }
    for fault in [Fault::Stalls("get"), Fault::StallsInBody] {
        bench.server.set(fault);
        let error = bench.get().await;
        assert!(matches!(error, Error::Slow(_)), "{fault:?}: {error}");
    }
    bench.server.set(Fault::Stalls("delete"));
    let removed = bench.archive.remove(&key(2, 1)).await.unwrap_err();
    assert!(matches!(removed, Error::Slow(_)), "{removed}");
    bench.recovers().await;
}

#[tokio::test]
async fn a_full_server_is_full() {
    let bench = bench(PATIENT).await;
    bench.archive.remove(&key(100, 1)).await.unwrap();
    bench.server.set(Fault::Full);
    for error in bench.puts().await {
        let is_full = matches!(&error, Error::Full(said) if said.contains("the pool is full"));
        assert!(is_full && error.is_transient(), "{error}");
    }
    let parts = bench.server.count("put part");
    assert!(
        parts <= 4,
        "{parts} parts: two of each large copy, and no retries"
    );
    bench.recovers().await;
}

#[tokio::test]
async fn a_busy_server_is_asked_again_and_a_broken_one_is_down() {
    let bench = bench(PATIENT).await;
    bench.server.set(Fault::Busy(2));
    bench
        .archive
        .verify(&key(2, 1), &bench.receipt)
        .await
        .unwrap();
    bench.server.set(Fault::Busy(1000));
    let busy = bench.get().await;
    assert!(matches!(busy, Error::Down(_)), "{busy}");
    bench.server.set(Fault::Internal);
    let internal = bench.get().await;
    assert!(matches!(internal, Error::Down(_)), "{internal}");
    bench.server.set(Fault::Breaks);
    let breaks = bench.get().await;
    assert!(matches!(breaks, Error::Down(_)), "{breaks}");
    bench.recovers().await;
}

#[tokio::test]
async fn a_server_that_is_gone_is_down() {
    let bench = bench(PATIENT).await;
    // A port at which nothing listens.
    let free = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let Location::S3(at) = bench.server.good(&bench.home) else {
        unreachable!("it is a bucket")
    };
    let gone = Location::S3(S3Location {
        endpoint: format!("http://{}", free.local_addr().unwrap()),
        ..at
    });
    drop(free);
    let id = bench.archive.identity().archive;
    let opened = Archive::open(&gone, PATIENT, &expected(id, 1, 1))
        .await
        .unwrap_err();
    assert!(
        matches!(opened, Error::Down(_)) && opened.is_transient(),
        "{opened}"
    );
}

#[tokio::test]
async fn refused_credentials_are_the_configurations_fault_and_nothing_is_written() {
    let bench = bench(PATIENT).await;
    let before = bench.server.objects.lock().unwrap().clone();
    let id = bench.archive.identity().archive;
    let wrong = bench.server.location(&bench.home, "another secret");
    let opened = Archive::open(&wrong, PATIENT, &expected(id, 1, 1))
        .await
        .unwrap_err();
    assert!(
        matches!(&opened, Error::Refused(said) if said.contains("Signature")),
        "{opened}"
    );
    assert!(!opened.is_transient());
    let created = Archive::create(&wrong, PATIENT, CELL, "example.org", 1)
        .await
        .unwrap_err();
    assert!(matches!(created, Error::Refused(_)), "{created}");
    bench.server.set(Fault::Refuses);
    for error in [bench.put(4, 1000).await.unwrap_err(), bench.get().await] {
        assert!(matches!(error, Error::Refused(_)), "{error}");
    }
    assert_eq!(*bench.server.objects.lock().unwrap(), before);

    let Location::S3(at) = bench.server.good(&bench.home) else {
        unreachable!("it is a bucket")
    };
    bench.server.set(Fault::None);
    let none = Location::S3(S3Location {
        bucket: "none".to_owned(),
        ..at
    });
    let opened = Archive::open(&none, PATIENT, &expected(id, 0, 0))
        .await
        .unwrap_err();
    assert!(matches!(&opened, Error::Configuration(said) if said.contains("NoSuchBucket")));
    bench.recovers().await;
}

#[tokio::test]
async fn an_emptied_bucket_is_no_archive_any_more() {
    let bench = bench(PATIENT).await;
    let location = bench.server.good(&bench.home);
    let id = bench.archive.identity().archive;
    let kept = bench.server.objects.lock().unwrap().clone();
    let without = |part: &str| {
        let mut objects = kept.clone();
        objects.retain(|key, _| !key.contains(part));
        *bench.server.objects.lock().unwrap() = objects;
    };
    for part in ["/objects/", "/sessions/", "cellar-archive"] {
        without(part);
        let opened = Archive::open(&location, PATIENT, &expected(id, 1, 1))
            .await
            .unwrap_err();
        assert!(
            matches!(opened, Error::EmptyThoughUsed(_)),
            "{part}: {opened}"
        );
    }
    without("nothing");
    bench.recovers().await;
}
