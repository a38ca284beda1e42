//! A file changes its place between this server and objects while the bytes of a store arrive. The
//! client is not asked to repeat the store, unless its bytes are gone.

use std::time::Duration;

use cellar_rpc::OutgoingCall;
use cellar_wire::AbortCode;
use cellar_wire::ids::Fid;
use cellar_wire::rxafs::{self, AfsStoreStatus};

use crate::common::osds::{KEEP, Osds, THRESHOLD, layout, pattern, read, set_policy};
use crate::common::{Cell, Machine, OPEN, plain_code, run, store_within as store};

/// Longer than the first bytes of a store into objects, for which the server waits.
const LONG: usize = 700_001;

/// A store of which some bytes have been sent.
struct SlowStore {
    call: OutgoingCall,
    bytes: Vec<u8>,
    sent: usize,
}

impl SlowStore {
    async fn begin(machine: &Machine, fid: Fid, position: u64, bytes: &[u8]) -> Self {
        let call = rxafs::StoreData64 {
            fid,
            in_status: AfsStoreStatus::default(),
            position,
            length: bytes.len() as u64,
            file_length: KEEP,
        };
        Self {
            call: machine.connection.open(&call).await.unwrap(),
            bytes: bytes.to_vec(),
            sent: 0,
        }
    }

    /// Sends the bytes up to `end`, and gives the server time to handle them.
    async fn send_to(&mut self, end: usize) {
        for part in self.bytes[self.sent..end].chunks(100_000) {
            self.call.write(part.to_vec().into()).await.unwrap();
        }
        self.sent = end;
        tokio::time::sleep(Duration::from_millis(150)).await;
    }

    /// Sends the rest. Returns the length of the file, or the error.
    async fn end(mut self) -> Result<u64, cellar_rpc::CallError> {
        self.send_to(self.bytes.len()).await;
        self.call.finish();
        let reply: rxafs::StoreData64Reply = self.call.results().await?;
        Ok(reply.status.length)
    }
}

/// The bytes of a file after a store.
fn after(mut bytes: Vec<u8>, position: usize, new: &[u8]) -> Vec<u8> {
    bytes.resize(bytes.len().max(position + new.len()), 0);
    bytes[position..position + new.len()].copy_from_slice(new);
    bytes
}

/// Runs a test's body with a cell, a slow client, another client, and a file with these bytes.
fn with(bytes: &[u8], body: impl AsyncFnOnce(&Cell, &Osds, &[Machine; 2], Fid)) {
    let cell = Cell::start();
    let machines = [Machine::new(&cell, 1), Machine::new(&cell, 2)];
    run(async {
        let osds = Osds::start(&cell, 2, &[(2, "=> osd;")]).await;
        let fid = machines[0].create(Fid::root(OPEN), "f").await;
        store(&machines[0], fid, 0, bytes, KEEP).await.unwrap();
        body(&cell, &osds, &machines, fid).await;
    });
}

#[test]
fn a_file_goes_to_objects_during_a_small_store() {
    let first = pattern(50_000, 1);
    with(&first, async |cell, _, [slow, other], fid| {
        set_policy(cell, OPEN, 1);
        let (small, large) = (pattern(9000, 2), pattern(THRESHOLD as usize, 3));
        let mut call = SlowStore::begin(slow, fid, 100, &small).await;
        call.send_to(4000).await;
        store(other, fid, 50_000, &large, KEEP).await.unwrap();
        assert!(layout(cell, fid).is_some());
        assert_eq!(call.end().await.unwrap(), 50_000 + THRESHOLD);
        let bytes = after(after(first.clone(), 50_000, &large), 100, &small);
        assert!(read(other, fid).await == bytes);
    });
}

#[test]
fn a_file_goes_to_objects_during_a_large_store() {
    let first = pattern(50_000, 1);
    // Bytes in memory only, and in blocks of the partition as well.
    for length in [THRESHOLD as usize + 9, 3 * LONG] {
        with(&first, async |cell, osds, [slow, other], fid| {
            let large = pattern(length, 2);
            let mut call = SlowStore::begin(slow, fid, 4321, &large).await;
            call.send_to(length - 100).await;
            set_policy(cell, OPEN, 2);
            store(other, fid, 0, b"moved", KEEP).await.unwrap();
            assert!(layout(cell, fid).is_some());
            assert_eq!(
                call.end().await.unwrap() as usize,
                50_000.max(4321 + length)
            );
            let bytes = after(after(first.clone(), 0, b"moved"), 4321, &large);
            assert!(read(other, fid).await == bytes);
            assert_eq!(osds.objects(), 1);
        });
    }
}

#[test]
fn a_small_store_here_overtakes_one_into_new_objects() {
    let first = pattern(9000, 1);
    with(&first, async |cell, osds, [slow, other], fid| {
        set_policy(cell, OPEN, 1);
        let large = pattern(LONG, 2);
        let calls = osds.calls();
        let mut call = SlowStore::begin(slow, fid, 5000, &large).await;
        call.send_to(LONG - 100).await;
        assert_ne!(osds.calls(), calls, "the store into objects has begun");
        store(other, fid, 4990, b"overtakes", KEEP).await.unwrap();
        assert_eq!(layout(cell, fid), None);
        assert_eq!(call.end().await.unwrap() as usize, 5000 + LONG);
        let bytes = after(after(first.clone(), 4990, b"overtakes"), 5000, &large);
        assert!(read(other, fid).await == bytes);
        assert!(layout(cell, fid).is_some());
    });
}

/// The file that is being written in objects moves back to this server. Then it goes to objects
/// again, or stays.
#[test]
fn a_file_moves_back_during_a_store_into_its_objects() {
    let first = pattern(LONG, 1);
    for stays in [false, true] {
        with(&first, async |cell, _, [slow, other], fid| {
            set_policy(cell, OPEN, 1);
            store(other, fid, 0, b"goes away", KEEP).await.unwrap();
            assert!(layout(cell, fid).is_some());
            let large = pattern(LONG, 2);
            let mut call = SlowStore::begin(slow, fid, 100, &large).await;
            call.send_to(LONG - 100).await;
            if stays {
                set_policy(cell, OPEN, 0);
            }
            store(other, fid, 0, b"back", 0).await.unwrap();
            assert_eq!(layout(cell, fid), None);
            // Its former objects are removed meanwhile.
            tokio::time::sleep(Duration::from_millis(300)).await;
            assert_eq!(call.end().await.unwrap() as usize, 100 + LONG);
            let bytes = after(b"back".to_vec(), 100, &large);
            assert!(read(other, fid).await == bytes, "stays: {stays}");
            assert_eq!(layout(cell, fid).is_none(), stays);
        });
    }
}

/// To this server before the first byte is written to objects, and to objects again while the bytes
/// arrive here.
#[test]
fn a_file_moves_there_and_back_during_one_store() {
    let first = pattern(LONG, 1);
    with(&first, async |cell, _, [slow, other], fid| {
        set_policy(cell, OPEN, 1);
        store(other, fid, 0, b"goes away", KEEP).await.unwrap();
        let large = pattern(3 * LONG, 2);
        let mut call = SlowStore::begin(slow, fid, 100, &large).await;
        call.send_to(1000).await;
        set_policy(cell, OPEN, 0);
        store(other, fid, 0, b"back", 0).await.unwrap();
        assert_eq!(layout(cell, fid), None);
        call.send_to(2 * LONG).await;
        set_policy(cell, OPEN, 2);
        store(other, fid, 0, b"away", KEEP).await.unwrap();
        assert!(layout(cell, fid).is_some());
        assert_eq!(call.end().await.unwrap() as usize, 100 + 3 * LONG);
        let bytes = after(b"away".to_vec(), 100, &large);
        assert!(read(other, fid).await == bytes);
    });
}

/// The server keeps a part of the bytes that it writes to objects. If it needs more of them, the
/// client must send them again, and the file has the other store.
#[test]
fn a_client_repeats_an_overtaken_store_whose_bytes_are_gone() {
    let first = pattern(9000, 1);
    with(&first, async |cell, _, [slow, other], fid| {
        set_policy(cell, OPEN, 1);
        let large = pattern(9 << 20, 2);
        let mut call = SlowStore::begin(slow, fid, 0, &large).await;
        call.send_to(large.len() - 100).await;
        store(other, fid, 0, b"overtakes", KEEP).await.unwrap();
        assert_eq!(plain_code(call.end().await), AbortCode::VBUSY.0);
        assert!(read(other, fid).await == after(first.clone(), 0, b"overtakes"));
        store(slow, fid, 0, &large, KEEP).await.unwrap();
        assert!(read(other, fid).await == large);
    });
}
