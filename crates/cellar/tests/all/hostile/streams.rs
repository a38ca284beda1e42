//! Transfers that lie about their lengths, stop midway, exceed the quota, or are never read.

use std::time::Duration;

use bytes::Bytes;
use cellar_rpc::{CallError, Connection, Runtime};
use cellar_wire::abort::AbortCode;
use cellar_wire::ids::Fid;
use cellar_wire::rxafs::{self, AfsStoreStatus};

use crate::hostile::cell::{begin, code, mode, name, run, store, within};

const VDISKFULL: i32 = 108;
const VOVERQUOTA: i32 = 109;
const STOPPED: i32 = -32;

async fn new_file(files: &Connection, root: Fid, title: &str) -> Fid {
    let create = rxafs::CreateFile {
        dir_fid: root,
        name: name(title),
        in_status: mode(0o644),
    };
    within(files.call(&create)).await.unwrap().fid
}

async fn length_and_version(files: &Connection, fid: Fid) -> (u64, u64) {
    let status = within(files.call(&rxafs::FetchStatus { fid }))
        .await
        .unwrap()
        .status;
    (status.length, status.data_version)
}

fn announce(fid: Fid, length: u64) -> rxafs::StoreData64 {
    rxafs::StoreData64 {
        fid,
        in_status: AfsStoreStatus::default(),
        position: 0,
        length,
        file_length: length,
    }
}

#[test]
fn stores_that_do_not_send_what_they_announce() {
    run(async {
        let (mut cell, client, files, root) = begin().await;
        let fid = new_file(&files, root, "file").await;
        within(store(&files, fid, 0, 5, Bytes::from_static(b"first")))
            .await
            .unwrap();
        let before = length_and_version(&files, fid).await;
        // Less than announced: the file stays unchanged.
        for announced in [6u64, 100, 65_536, 65_537, 3_000_000, 1 << 40] {
            let data = Bytes::from(vec![7; (announced / 2).min(500_000) as usize]);
            let outcome = code(within(store(&files, fid, 0, announced, data)).await);
            assert!(
                outcome == STOPPED || outcome == VOVERQUOTA || outcome == VDISKFULL,
                "{announced}: {outcome}"
            );
            assert_eq!(length_and_version(&files, fid).await, before, "{announced}");
        }
        // More than announced: the rest is not part of the file.
        for (announced, sent) in [(3u64, 10usize), (0, 100_000), (70_000, 400_000)] {
            let outcome = within(store(&files, fid, 0, announced, vec![9; sent].into())).await;
            assert!(
                matches!(outcome, Ok(()) | Err(CallError::AnsweredEarly)),
                "{announced}: {outcome:?}"
            );
            let (length, _) = length_and_version(&files, fid).await;
            assert!(length <= announced.max(before.0), "{announced}: {length}");
        }
        // Aborted midway, a thousand times; more often if the server is so slow that many end
        // before it starts to read them.
        let (length, version) = length_and_version(&files, fid).await;
        let mut seen = 0;
        for pause in [1, 10, 50] {
            for round in 0..1000u64 {
                let mut call = within(files.open(&announce(fid, 1_000_000))).await.unwrap();
                within(call.write(vec![1; 1 + (round as usize * 97) % 90_000].into()))
                    .await
                    .unwrap();
                // The written data is sent, and the server starts to read it.
                tokio::time::sleep(Duration::from_millis(pause)).await;
                call.abort(AbortCode::RX_USER_ABORT);
            }
            assert_eq!(length_and_version(&files, fid).await, (length, version));
            let statistics = cell.statistics();
            let gone = &statistics["files"]["refused"]["client_gone"];
            seen = gone.as_u64().unwrap();
            if seen > 300 {
                break;
            }
        }
        assert!(seen > 300, "{seen}");
        cell.assert_well(&client).await;
    });
}

#[test]
fn stores_past_the_quota() {
    run(async {
        let (mut cell, client, files, root) = begin().await;
        let administrator = cellar_rpc::local::connect(&cell.directory().join("admin.sock"))
            .await
            .unwrap();
        let quota = rxafs::SetVolumeStatus {
            volume: root.volume,
            status: rxafs::StoreVolumeStatus {
                max_quota: Some(2000),
                ..Default::default()
            },
            name: Default::default(),
            offline_message: Default::default(),
            message_of_the_day: Default::default(),
        };
        administrator.call(&quota).await.unwrap();
        let fid = new_file(&files, root, "large").await;
        let outcome = within(store(&files, fid, 0, 8 << 20, vec![1; 8 << 20].into())).await;
        assert_eq!(code(outcome), VOVERQUOTA);
        // A length beyond all disks, and no data.
        let outcome = within(store(&files, fid, 0, 1 << 50, Bytes::new())).await;
        let outcome = code(outcome);
        assert!(outcome == VOVERQUOTA || outcome == VDISKFULL, "{outcome}");
        assert_eq!(length_and_version(&files, fid).await, (0, 0));
        within(store(&files, fid, 0, 1 << 20, vec![1; 1 << 20].into()))
            .await
            .unwrap();
        assert!(
            cell.statistics()["files"]["refused"]["over_quota"]
                .as_u64()
                .unwrap()
                >= 1
        );
        cell.assert_well(&client).await;
    });
}

/// Readers that request much and read nothing: they cost the server their window, not the files.
#[test]
fn readers_that_do_not_read() {
    run(async {
        let (mut cell, client, files, root) = begin().await;
        let fid = new_file(&files, root, "large").await;
        const READERS: u64 = 200;
        const LENGTH: u64 = 32 << 20;
        within(store(
            &files,
            fid,
            0,
            LENGTH,
            vec![1; LENGTH as usize].into(),
        ))
        .await
        .unwrap();
        cell.assert_well(&client).await;
        let before = cell.resident();
        let mut calls = Vec::new();
        let mut reader = files.clone();
        for number in 0..READERS {
            if number % 50 == 0 {
                reader = cell.target.connect(&client, 0, &rxafs::PACKAGE);
            }
            let fetch = rxafs::FetchData64 {
                fid,
                position: 0,
                length: LENGTH as i64,
            };
            let mut call = within(reader.open(&fetch)).await.unwrap();
            // Its first word; after that the stream is kept and not read.
            let length: u64 = within(call.read()).await.unwrap();
            assert_eq!(length, LENGTH);
            calls.push(call);
        }
        // The server reads and buffers meanwhile, as much as it is willing to.
        tokio::time::sleep(Duration::from_secs(2)).await;
        // Other clients are served meanwhile.
        let other = Runtime::client_only().unwrap();
        cell.assert_well(&other).await;
        let grown = cell.resident().saturating_sub(before);
        eprintln!("{READERS} readers that do not read: {} MiB", grown >> 20);
        // For each: the send buffer, the piece being written, and the piece that was read; in
        // addition the store's caches, which fill once.
        assert!(
            grown < READERS * (3 << 19) + (112 << 20),
            "{} MiB",
            grown >> 20
        );
        drop(calls);
        // The server learns of their end.
        tokio::time::sleep(Duration::from_secs(1)).await;
        cell.assert_well(&client).await;
    });
}
