//! Forward and ForwardMultiple: between Cellar servers, to a server that knows only OpenAFS's
//! procedures, and to servers that fail.

use crate::common;

use std::net::UdpSocket;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::volser::{
    NEW, RO, Volser, another, assert_same, calls, clone_for_release, contents, cookie, destination,
    items, release, taken, two,
};
use crate::common::{Cell, Machine, NOW, OPEN, run};
use bytes::Bytes;
use cellar_rpc::{IncomingCall, LocalBoxFuture, Service, only};
use cellar_until::until;
use cellar_wire::afsvol::{
    self, BACKUP, DestServer, ForwardMultiple, GetState, IT_BUSY, IT_OFFLINE, READONLY, READWRITE,
    Replica,
};
use cellar_wire::dump::Item;
use cellar_wire::ids::{Fid, VolumeId};
use cellar_wire::{AbortCode, List, Package, Procedure};

#[test]
fn a_release_sends_what_changed() {
    let (here, there, client, reader, port) = two();
    run(async {
        let source = Volser(here.admin().await);
        let target = Volser(there.admin().await);
        let root = Fid::root(OPEN);
        let mut some = root;
        for dir in 0..10 {
            let dir = client.make_dir(root, &format!("dir{dir}")).await;
            for file in 0..100 {
                let file = client.create(dir, &format!("file{file}")).await;
                client.store(file, 0, &[3; 1024]).await.unwrap();
                some = file;
            }
        }
        let large = client.create(root, "large").await;
        client.store(large, 0, &[9; 1_000_000]).await.unwrap();
        clone_for_release(&source, true).await;
        let to = target.create("scratch.readonly", READONLY, OPEN, RO).await;
        target.flags(to, 3).await;
        target.end(to).await;
        release(&source, &target, &port, 0).await;
        let (new, old) = (target.items(RO).await, source.items(RO).await);
        assert_same(&contents(&new), &contents(&old), "first");
        let whole = taken(&port);
        assert!(whole > 2_000_000, "{whole}");
        let seen = |fid: Fid| Fid { volume: RO, ..fid };
        assert_eq!(reader.fetch(seen(some), 0, 9999).await.unwrap(), [3; 1024]);

        let from = (NOW - 2) as i32;
        for change in 0..4 {
            let before = taken(&port);
            let at_most = match change {
                0 => 4096,
                // 10 KB into one file.
                1 => {
                    client.store(some, 0, &[4; 10_240]).await.unwrap();
                    20_000
                }
                // 10 KB in the middle of a large one, which is then truncated.
                2 => {
                    client.store(large, 500_000, &[5; 10_240]).await.unwrap();
                    let cut = cellar_wire::rxafs::StoreData64 {
                        fid: large,
                        in_status: Default::default(),
                        position: 900_000,
                        length: 0,
                        file_length: 900_000,
                    };
                    let mut call = client.connection.open(&cut).await.unwrap();
                    call.finish();
                    let _status: cellar_wire::rxafs::StoreData64Reply = call.read().await.unwrap();
                    60_000
                }
                // Names are added and removed.
                _ => {
                    let gone = cellar_wire::rxafs::RemoveFile {
                        dir_fid: root,
                        name: common::name("large"),
                    };
                    client.ok(&gone).await;
                    let new = client.create(root, "new").await;
                    client.store(new, 1 << 33, b"far").await.unwrap();
                    20_000
                }
            };
            clone_for_release(&source, false).await;
            release(&source, &target, &port, from).await;
            let sent = taken(&port) - before;
            println!("change {change}: {sent} bytes");
            assert!(sent < at_most, "{sent} bytes for change {change}");
            if change < 3 {
                let (new, old) = (target.items(RO).await, source.items(RO).await);
                assert_same(&contents(&new), &contents(&old), "later");
            }
        }
        assert_eq!(reader.take_breaks(), [seen(Fid::whole_volume(RO))]);
        let new = seen(client.lookup(root, "new").await);
        assert_eq!(reader.status(new).await.status.length, (1 << 33) + 3);
        assert_eq!(calls(&port, afsvol::Restore::OPCODE), 0);
    });
    for cell in [&here, &there] {
        assert_eq!(cell.partition.check().unwrap().faults, [""; 0]);
    }
}

/// A volume server with OpenAFS's procedures: receives dumps, and keeps their bytes.
#[derive(Default)]
struct Stock(parking_lot::Mutex<Vec<Vec<u8>>>);

impl Stock {
    async fn restore(
        &self,
        call: &mut IncomingCall,
        restore: afsvol::Restore,
    ) -> Result<(), AbortCode> {
        let mut dump = Vec::new();
        while let Some(bytes) = call.read_chunk().await? {
            dump.extend_from_slice(&bytes);
            if restore.trans == 13 && dump.len() > 10_000 {
                return Err(AbortCode::VOLSERREAD_DUMPERROR);
            }
        }
        self.0.lock().push(dump);
        Ok(())
    }
}

#[test]
fn each_destination_has_its_own_result_and_waits_for_no_other() {
    let (here, there, client, _other, port) = two();
    let stock = Arc::new(Stock::default());
    let taken = stock.clone();
    let service =
        only(async move |call: &mut IncomingCall, restore| taken.restore(call, restore).await);
    let (_runtime, stock_port) = another(&there, service);
    // A server that never answers.
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    run(async {
        let source = Volser(here.admin().await);
        let target = Volser(there.admin().await);
        let file = client.create(Fid::root(OPEN), "file").await;
        client.store(file, 0, &[1; 300_000]).await.unwrap();
        let to = target.create("copy", READWRITE, NEW, NEW).await;
        let from = source.begin(OPEN, IT_BUSY).await;
        let replica = |server: DestServer, trans| Replica { trans, server };
        let nobody = DestServer {
            port: silent.local_addr().unwrap().port().into(),
            ..destination(&port)
        };
        let call = ForwardMultiple {
            from_trans: from,
            from_date: 0,
            destinations: List::from_iter_cut([
                replica(nobody, 1),
                replica(destination(&port), to),
                replica(destination(&stock_port), 12),
                replica(destination(&stock_port), 13),
                replica(destination(&port), 999),
            ]),
            spare: 0,
            cookie: cookie("copy", READWRITE, NEW),
        };
        let admin = here.admin().await;
        let (stock, port) = (&stock, &port);
        let watched = async move {
            // Both working destinations are served long before the silent one times out.
            let begun = Instant::now();
            // The destination with a wrong number is asked, and receives nothing.
            until("both are asked", async || {
                !stock.0.lock().is_empty() && calls(port, afsvol::RestoreDelta::OPCODE) > 0
            })
            .await;
            assert!(begun.elapsed() < Duration::from_secs(10));
            let open = admin.call(&afsvol::Monitor {}).await.unwrap().entries;
            let [shown] = &open[..] else { panic!() };
            assert_eq!((shown.volume, shown.call_valid), (OPEN, 1));
            assert_eq!(&shown.last_procedure[..], b"ForwardMulti");
            assert!(shown.transmit_next > 200, "{shown:?}");
            let now = NOW as i32;
            assert_eq!((shown.last_receive_time, shown.last_send_time), (now, now));
            // Ending the transaction aborts the rest.
            admin.call(&afsvol::EndTrans { trans: from }).await.unwrap();
            assert_eq!(calls(port, afsvol::RestoreDelta::OPCODE), 1);
        };
        let (reply, ()) = tokio::join!(source.0.call(&call), watched);
        let results = reply.unwrap().results;
        assert_eq!(results[1..], [0, 0, 1_492_325_122, 2]);
        assert!(results[0] < 0, "{results:?}");
        let dump = stock.0.lock().remove(0);
        let from = source.begin(OPEN, IT_BUSY).await;
        assert_eq!(source.dump(from, 0).await, dump);
        source.end(from).await;
        target.flags(to, 0).await;
        target.end(to).await;
        let new = target.items(NEW).await;
        assert_same(&contents(&new), &contents(&items(&dump)), "a copy");
    });
}

#[test]
fn a_destination_with_something_else_gets_everything() {
    let (here, there, client, other, port) = two();
    run(async {
        let source = Volser(here.admin().await);
        let target = Volser(there.admin().await);
        let file = client.create(Fid::root(OPEN), "file").await;
        client.store(file, 0, &[1; 300_000]).await.unwrap();
        let to = target.create("copy", READWRITE, NEW, NEW).await;
        let from = source.begin(OPEN, IT_BUSY).await;
        let ids = || cookie("copy", READWRITE, NEW);
        source.forward(from, 0, (&port, to), ids()).await.unwrap();
        let state = target.0.call(&GetState { trans: to }).await.unwrap().state;
        assert!(state.is_known());
        target.flags(to, 0).await;
        target.end(to).await;
        // The volume was changed there since: its state has no name, and the date does not help.
        let unlisted = cellar_wire::rxafs::RemoveFile {
            dir_fid: Fid::root(NEW),
            name: common::name("file"),
        };
        there.set_list(
            Fid::root(NEW),
            common::list(&[(common::ANYUSER, "rlidwka")]),
        );
        other.ok(&unlisted).await;
        let to = target.begin(NEW, IT_OFFLINE).await;
        let state = target.0.call(&GetState { trans: to }).await.unwrap().state;
        assert!(!state.is_known());
        let later = (NOW + 100) as i32;
        source
            .forward(from, later, (&port, to), ids())
            .await
            .unwrap();
        target.end(to).await;
        let new = target.items(NEW).await;
        let old = items(&source.dump(from, 0).await);
        assert_same(&contents(&new), &contents(&old), "everything");
        source.end(from).await;
    });
}

#[test]
fn clones_of_clones_and_conversion() {
    let cell = Cell::start();
    let client = Machine::new(&cell, 1);
    run(async {
        let volser = Volser(cell.admin().await);
        let file = client.create(Fid::root(OPEN), "file").await;
        client.store(file, 0, b"one").await.unwrap();
        // A read-only site of another server's volume.
        let trans = volser.begin(OPEN, IT_BUSY).await;
        let dump = volser.dump(trans, 0).await;
        volser.end(trans).await;
        let parent = VolumeId(536_870_990);
        let site = volser.create("far.readonly", READONLY, parent, RO).await;
        let ids = || cookie("far.readonly", READONLY, parent);
        volser.restore(site, ids(), &dump, 1000).await.unwrap();
        volser.ids(site, "far.readonly", READONLY, parent).await;
        volser.flags(site, 0).await;
        volser.end(site).await;
        let seen = Fid { volume: RO, ..file };
        assert_eq!(client.fetch(seen, 0, 9).await.unwrap(), b"one");
        let store = client.store(seen, 0, b"no").await;
        assert_eq!(store.unwrap_err().code().0, 30);
        // A backup of it.
        let trans = volser.begin(RO, IT_BUSY).await;
        volser.clone_of(trans, BACKUP, "far.backup", NEW).await;
        volser.end(trans).await;
        let items = volser.items(NEW).await;
        assert!(items.contains(&Item::Data(b"one"[..].into())));
        volser.delete(NEW).await;
        // It stays readable while its contents are replaced.
        client.store(file, 0, b"two").await.unwrap();
        let trans = volser.begin(OPEN, IT_BUSY).await;
        let dump = volser.dump(trans, 0).await;
        volser.end(trans).await;
        let site = volser.begin(RO, IT_OFFLINE).await;
        assert_eq!(client.fetch(seen, 0, 9).await.unwrap(), b"one");
        client.take_breaks();
        volser.restore(site, ids(), &dump, 1000).await.unwrap();
        assert_eq!(client.fetch(seen, 0, 9).await.unwrap(), b"two");
        assert_eq!(client.take_breaks(), [Fid::whole_volume(RO)]);
        volser.end(site).await;
        // It becomes the read-write volume.
        let convert = afsvol::ConvertROtoRWvolume {
            partition: 0,
            volume: RO,
        };
        volser.0.call(&convert).await.unwrap();
        assert_eq!(
            client
                .code(&cellar_wire::rxafs::FetchStatus { fid: seen })
                .await,
            103
        );
        volser.online(parent).await;
        let own = Fid {
            volume: parent,
            ..file
        };
        assert_eq!(client.fetch(own, 0, 9).await.unwrap(), b"two");
        client.store(own, 0, b"own").await.unwrap();
        let code = volser.0.call(&convert).await.unwrap_err().code().0;
        assert_eq!(code, 19, "ENODEV");
    });
}

/// A volume server that keeps the deltas that it receives, with their heads.
#[derive(Default)]
struct Keeper(parking_lot::Mutex<Vec<(afsvol::DeltaHead, Vec<u8>)>>);

impl Service for Keeper {
    fn package(&self) -> &'static Package {
        &afsvol::PACKAGE
    }

    fn call<'a>(&'a self, call: &'a mut IncomingCall) -> LocalBoxFuture<'a, Result<(), AbortCode>> {
        Box::pin(async move {
            match call.opcode().await? {
                afsvol::GetState::OPCODE => call.reply(&afsvol::GetStateReply {
                    version: 1,
                    state: afsvol::VolumeState::default(),
                }),
                afsvol::RestoreDelta::OPCODE => {
                    let restore: afsvol::RestoreDelta = call.arguments().await?;
                    let mut delta = Vec::new();
                    while let Some(bytes) = call.read_chunk().await? {
                        delta.extend_from_slice(&bytes);
                    }
                    self.0.lock().push((restore.head, delta));
                }
                _ => return Err(AbortCode::RXGEN_OPCODE),
            }
            Ok(())
        })
    }
}

#[test]
fn bad_deltas_leave_the_volume_as_it_was() {
    let (here, there, client, _other, _port) = two();
    let keeper = Arc::new(Keeper::default());
    let (_runtime, port) = another(&there, keeper.clone());
    run(async {
        let source = Volser(here.admin().await);
        let target = Volser(there.admin().await);
        let dir = client.make_dir(Fid::root(OPEN), "dir").await;
        for file in ["a", "b", "c"] {
            let file = client.create(dir, file).await;
            client.store(file, 0, &[1; 50_000]).await.unwrap();
        }
        let from = source.begin(OPEN, IT_BUSY).await;
        let ids = || cookie("copy", READWRITE, NEW);
        source.forward(from, 0, (&port, 1), ids()).await.unwrap();
        source.end(from).await;
        let (head, delta) = keeper.0.lock().remove(0);

        let send = async |trans: i32, head: &afsvol::DeltaHead, delta: &[u8]| {
            let restore = afsvol::RestoreDelta {
                trans,
                cookie: ids(),
                head: head.clone(),
            };
            let mut call = target.0.open(&restore).await.unwrap();
            for piece in delta.chunks(10_000) {
                if call.write(Bytes::copy_from_slice(piece)).await.is_err() {
                    break;
                }
            }
            call.finish();
            let result = call.results::<afsvol::RestoreDeltaReply>().await;
            result.err().map_or(0, |error| error.code().0)
        };
        let trans = target.create("copy", READWRITE, NEW, NEW).await;
        assert_eq!(send(trans, &head, &delta).await, 0);
        target.flags(trans, 0).await;
        target.end(trans).await;
        let before = target.items(NEW).await;
        let trans = target.begin(NEW, IT_OFFLINE).await;
        let bad_dump = 1_492_325_122;
        let mut at = 0;
        while at < delta.len() {
            assert_eq!(send(trans, &head, &delta[..at]).await, bad_dump, "{at}");
            let mut damaged = delta.clone();
            damaged[at] ^= 0x10;
            assert_eq!(send(trans, &head, &damaged).await, bad_dump, "{at}");
            at += if at < 400 { 13 } else { 7919 };
        }
        let state = target.0.call(&GetState { trans }).await.unwrap().state;
        assert_eq!(state, head.state, "still what it was");
        let wrong = |base_kind, epoch| afsvol::DeltaHead {
            base_kind,
            base: afsvol::VolumeState {
                epoch,
                ..head.state
            },
            ..head.clone()
        };
        let stale = afsvol::WRONG_BASE.0;
        let epoch = head.state.epoch;
        for (head, code) in [
            (wrong(afsvol::BASE_STATE, epoch + 1), stale),
            (wrong(7, epoch), bad_dump),
            (
                afsvol::DeltaHead {
                    version: 2,
                    ..head.clone()
                },
                -455,
            ),
            (
                afsvol::DeltaHead {
                    base_kind: afsvol::BASE_STATE,
                    ..head.clone()
                },
                stale,
            ),
        ] {
            assert_eq!(send(trans, &head, &delta).await, code, "{head:?}");
        }
        target.end(trans).await;
        let after = target.items(NEW).await;
        assert_same(&contents(&after), &contents(&before), "after");
    });
    assert_eq!(there.partition.check().unwrap().faults, [""; 0]);
}
