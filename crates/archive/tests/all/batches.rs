//! Batches: each request is completed once, with its own result.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use cellar_archive::{
    Archive, ArchiveDriver, Driver, Error, FlushRequest, Location, ObjectKey, Receipt,
    RemoveRequest, Request, RequestId, Settings, Sink, Source, StageRequest, VerifyRequest,
};
use futures_util::future::BoxFuture;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::bytes_of::{CELL, Counted, Held, expected, key, random, receipt};

/// The common parts of all requests of these tests.
struct Ask<T> {
    id: RequestId,
    key: ObjectKey,
    deadline: Option<Instant>,
    done: oneshot::Sender<Result<T, Error>>,
}

/// A request to write; without bytes, the source never delivers.
struct Flush {
    ask: Ask<Receipt>,
    bytes: Option<Bytes>,
}

/// A request to read, verify or remove.
struct Read {
    ask: Ask<()>,
    receipt: Receipt,
}

struct Silent;

impl Source for Silent {
    fn read(&mut self, _: usize) -> BoxFuture<'_, io::Result<Bytes>> {
        Box::pin(std::future::pending())
    }
}

macro_rules! ask {
    ($($type:ty),*) => {$(
        impl Request for $type {
            fn id(&self) -> RequestId {
                self.ask.id
            }
            fn key(&self) -> ObjectKey {
                self.ask.key
            }
            fn deadline(&self) -> Option<Instant> {
                self.ask.deadline
            }
        }
    )*};
}
ask!(Flush, Read);

impl FlushRequest for Flush {
    fn length(&self) -> u64 {
        self.bytes.as_ref().map_or(10, |bytes| bytes.len() as u64)
    }
    fn activate(&mut self) -> BoxFuture<'_, Result<Box<dyn Source>, Error>> {
        let source: Box<dyn Source> = match self.bytes.clone() {
            Some(bytes) => Box::new(Held(bytes)),
            None => Box::new(Silent),
        };
        Box::pin(std::future::ready(Ok(source)))
    }
    fn complete(self: Box<Self>, result: Result<Receipt, Error>) {
        self.ask.done.send(result).unwrap();
    }
}

impl StageRequest for Read {
    fn receipt(&self) -> Receipt {
        self.receipt
    }
    fn activate(&mut self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(std::future::ready(Ok(())))
    }
    fn allocate(&mut self) -> BoxFuture<'_, Result<Box<dyn Sink>, Error>> {
        let sink = Counted {
            bytes: 0,
            most: self.receipt.length,
        };
        Box::pin(std::future::ready(Ok(Box::new(sink) as Box<dyn Sink>)))
    }
    fn complete(self: Box<Self>, result: Result<(), Error>) {
        self.ask.done.send(result).unwrap();
    }
}

impl VerifyRequest for Read {
    fn receipt(&self) -> Receipt {
        self.receipt
    }
    fn activate(&mut self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(std::future::ready(Ok(())))
    }
    fn complete(self: Box<Self>, result: Result<(), Error>) {
        self.ask.done.send(result).unwrap();
    }
}

impl RemoveRequest for Read {
    fn activate(&mut self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(std::future::ready(Ok(())))
    }
    fn complete(self: Box<Self>, result: Result<(), Error>) {
        self.ask.done.send(result).unwrap();
    }
}

fn ask<T>(n: u32) -> (Ask<T>, oneshot::Receiver<Result<T, Error>>) {
    let (done, result) = oneshot::channel();
    let ask = Ask {
        id: RequestId(u64::from(n)),
        key: key(2 * n, 1),
        deadline: None,
        done,
    };
    (ask, result)
}

async fn driver(home: &tempfile::TempDir, parallel: usize) -> ArchiveDriver {
    let location = Location::Directory(home.path().to_path_buf());
    let settings = Settings {
        parallel,
        ..Settings::default()
    };
    let identity = Archive::create(&location, settings, CELL, "example.org", 1)
        .await
        .unwrap();
    let expected = expected(identity.archive, 0, 0);
    ArchiveDriver::new(Archive::open(&location, settings, &expected).await.unwrap())
}

#[tokio::test]
async fn each_request_of_a_batch_has_its_own_result() {
    let home = tempfile::tempdir().unwrap();
    let driver = driver(&home, 3).await;
    let bytes = |n: u32| random(1000 * n as usize, u64::from(n));
    let (mut batch, mut results): (Vec<Box<dyn FlushRequest>>, _) = (Vec::new(), Vec::new());
    for n in 1..=20 {
        let (ask, result) = ask(n);
        batch.push(Box::new(Flush {
            ask,
            bytes: Some(bytes(n)),
        }));
        results.push(result);
    }
    driver.flush(batch);
    for (n, result) in (1..).zip(results) {
        assert_eq!(result.await.unwrap().unwrap(), receipt(&bytes(n)));
    }
    // Every third one is asked for with another receipt, and 21 was never written.
    let (mut batch, mut results): (Vec<Box<dyn StageRequest>>, _) = (Vec::new(), Vec::new());
    for n in 1..=21 {
        let (ask, result) = ask(n);
        let mut receipt = receipt(&bytes(n));
        receipt.md5[0] ^= u8::from(n % 3 == 0);
        batch.push(Box::new(Read { ask, receipt }));
        results.push(result);
    }
    driver.stage(batch);
    for (n, result) in (1..).zip(results) {
        match (n, result.await.unwrap()) {
            (21, Err(Error::Missing(at))) => assert_eq!(at, key(42, 1)),
            (n, Err(Error::WrongBytes { .. })) => assert_eq!(n % 3, 0),
            (n, result) => assert!(result.is_ok() && n % 3 != 0, "{n}: {result:?}"),
        }
    }
    let (mut removals, mut results): (Vec<Box<dyn RemoveRequest>>, _) = (Vec::new(), Vec::new());
    for n in 1..=20 {
        let (ask, result) = ask(n);
        removals.push(Box::new(Read {
            ask,
            receipt: receipt(&bytes(n)),
        }));
        results.push(result);
    }
    driver.remove(removals);
    for result in results {
        result.await.unwrap().unwrap();
    }
    let (ask, result) = ask(1);
    driver.verify(vec![Box::new(Read {
        ask,
        receipt: receipt(&bytes(1)),
    })]);
    assert!(matches!(result.await.unwrap(), Err(Error::Missing(_))));
    cellar_until::until("no request is left", async || driver.unfinished() == 0).await;
}

#[tokio::test]
async fn requests_are_cancelled_and_end_at_their_deadline() {
    let home = tempfile::tempdir().unwrap();
    let driver = driver(&home, 1).await;
    // The first holds the only turn. The second waits for it, and the third has a deadline.
    let (mut batch, mut results): (Vec<Box<dyn FlushRequest>>, _) = (Vec::new(), Vec::new());
    for n in 1..=3 {
        let (mut ask, result) = ask(n);
        if n == 3 {
            ask.deadline = Some(Instant::now() + Duration::from_millis(20));
        }
        batch.push(Box::new(Flush { ask, bytes: None }));
        results.push(result);
    }
    driver.flush(batch);
    let third = results.pop().unwrap().await.unwrap();
    assert!(matches!(third, Err(Error::Slow(_))), "{third:?}");
    for n in [2, 1] {
        assert!(driver.cancel(RequestId(n)));
        assert!(!driver.cancel(RequestId(n)), "once");
        let result = results.pop().unwrap().await.unwrap();
        assert!(matches!(result, Err(Error::Cancelled)), "{result:?}");
    }
    assert!(!driver.cancel(RequestId(9)), "never heard of");
    // The turn is free again.
    let (ask, result) = ask(4);
    driver.flush(vec![Box::new(Flush {
        ask,
        bytes: Some("abc".into()),
    })]);
    result.await.unwrap().unwrap();
}

/// A copy of 200 MiB passes through with a few parts in memory. The source counts the bytes that
/// it has made and that still exist.
#[tokio::test]
async fn memory_is_bounded() {
    static ALIVE: AtomicUsize = AtomicUsize::new(0);
    static MOST: AtomicUsize = AtomicUsize::new(0);
    struct Piece(Vec<u8>);
    impl AsRef<[u8]> for Piece {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    impl Drop for Piece {
        fn drop(&mut self) {
            ALIVE.fetch_sub(self.0.len(), Ordering::SeqCst);
        }
    }
    struct Counting(usize);
    impl Source for Counting {
        fn read(&mut self, most: usize) -> BoxFuture<'_, io::Result<Bytes>> {
            let bytes = most.min(self.0);
            self.0 -= bytes;
            let alive = ALIVE.fetch_add(bytes, Ordering::SeqCst) + bytes;
            MOST.fetch_max(alive, Ordering::SeqCst);
            let piece = Bytes::from_owner(Piece(vec![7; bytes]));
            Box::pin(std::future::ready(Ok(piece)))
        }
    }
    let home = tempfile::tempdir().unwrap();
    let driver = Arc::new(driver(&home, 1).await);
    let length = 200 << 20;
    let put = driver
        .archive()
        .put(&key(2, 1), length, &mut Counting(length as usize))
        .await;
    let put = put.unwrap();
    let most = MOST.load(Ordering::SeqCst) as u64;
    let bound =
        cellar_archive::limits::PARTS_IN_MEMORY_MAX as u64 * cellar_archive::limits::PART_BYTES_MIN;
    assert!(
        most <= bound,
        "{most} bytes at a time, {bound} are permitted"
    );
    let mut sink = Counted {
        bytes: 0,
        most: length,
    };
    driver
        .archive()
        .get(&key(2, 1), &put, &mut sink)
        .await
        .unwrap();
    assert_eq!(sink.bytes, length);
}
