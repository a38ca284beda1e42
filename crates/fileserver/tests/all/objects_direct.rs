//! The file server's side of stores that clients make at the devices: rights, waiting, and the
//! conditions for success.

use crate::common;

use std::time::{Duration, Instant};

use crate::common::osds::{KEEP, Osds, layout, pattern, read, set_policy};
use crate::common::{ALICE, ANYUSER, Cell, Machine, NOW, OPEN, list, run, stated, store_within};
use cellar_objects::fake::Fault;
use cellar_rpc::{CallError, Connection, Security};
use cellar_until::until;
use cellar_wire::afsosd::{
    self, AbortStore, BeginFetch, BeginStore, BeginStoreReply, EndStore, EndStoreReply,
    ExtendStore, Failed, STORE_LEASE,
};
use cellar_wire::ids::Fid;
use cellar_wire::object::{Layout, Shape};
use cellar_wire::rxafs::{AfsStoreStatus, StoreData64, StoreData64Reply};
use cellar_wire::{AbortCode, AfsTime, List};

const BOB: i32 = 8;
/// How long it may take until a device has removed versions.
const PATIENCE: Duration = Duration::from_secs(15);
const EACCES: i32 = AbortCode::EACCES.0;
const ESTALE: i32 = AbortCode::ESTALE.0;

/// A cell whose files have two copies, unless a policy says otherwise.
struct World {
    osds: Osds,
    cell: Cell,
    machine: Machine,
    other: Machine,
}

impl World {
    async fn new(devices: u32) -> Self {
        Self::with_policy(devices, "=> osd, copies=2;").await
    }

    async fn with_policy(devices: u32, policy: &str) -> Self {
        let cell = Cell::start();
        let osds = Osds::start(&cell, devices, &[(2, policy)]).await;
        set_policy(&cell, OPEN, 2);
        Self {
            osds,
            machine: Machine::new(&cell, 1),
            other: Machine::new(&cell, 2),
            cell,
        }
    }

    /// Creates a file with these bytes, in objects.
    async fn file(&self, title: &str, bytes: &[u8]) -> Fid {
        let fid = self.machine.create(Fid::root(OPEN), title).await;
        let stored = store_within(&self.machine, fid, 0, bytes, KEEP).await;
        stored.unwrap();
        fid
    }

    /// The connection of a user to the object service.
    fn user(&self, name: &str) -> Connection {
        let service = afsosd::PACKAGE.service_id;
        self.machine.principal(stated::user(name), service)
    }

    /// An anonymous connection from another machine.
    fn anybody(&self) -> Connection {
        let service = afsosd::PACKAGE.service_id;
        let port = &self.other.port;
        port.connect(self.cell.address(), service, Security::null())
    }

    /// Simulates a client's writes: `bytes` are the whole new version, at these places.
    fn write(&self, fid: Fid, layout: &Layout, places: &[usize], bytes: &[u8]) {
        for place in places {
            let placed = &layout.objects[*place];
            let object = layout.object(fid.vnode, fid.uniquifier, placed);
            self.osds.fakes[placed.osd as usize - 2].objects(|objects| {
                let versions = objects.entry(object).or_default();
                versions.insert(layout.version, bytes.to_vec());
            });
        }
    }

    /// The number of versions on all devices.
    fn versions(&self) -> usize {
        let fakes = self.osds.fakes.iter();
        fakes
            .map(|fake| {
                fake.objects(|all| all.values().map(|versions| versions.len()).sum::<usize>())
            })
            .sum()
    }

    /// Waits until so many versions are left, without any garbage collection.
    async fn versions_become(&self, count: usize) {
        let begun = Instant::now();
        until("few versions", async || self.versions() <= count).await;
        assert!(begun.elapsed() < PATIENCE);
    }

    async fn read(&self, fid: Fid) -> Vec<u8> {
        read(&self.machine, fid).await
    }
}

async fn begin(client: &Connection, fid: Fid, length: u64) -> Result<BeginStoreReply, CallError> {
    let call = BeginStore {
        fid,
        position: 0,
        length,
        file_length: length,
        shape: List::default(),
    };
    client.call(&call).await
}

async fn end(
    client: &Connection,
    fid: Fid,
    store: u64,
    length: u64,
    failed: &[(u32, i32)],
) -> Result<EndStoreReply, CallError> {
    let failed = failed.iter().map(|&(place, code)| Failed { place, code });
    let call = EndStore {
        fid,
        store,
        length,
        modified: AfsTime(NOW as u32),
        failed: List::from_iter_cut(failed),
    };
    client.call(&call).await
}

async fn extend(client: &Connection, fid: Fid, store: u64, length: u64) -> Result<(), CallError> {
    let call = ExtendStore {
        fid,
        store,
        position: 0,
        length,
    };
    client.call(&call).await.map(drop)
}

fn code(outcome: Result<impl std::fmt::Debug, CallError>) -> i32 {
    common::plain_code(outcome)
}

#[test]
fn direct_access_needs_the_rights_that_fetching_and_storing_need() {
    run(async {
        let world = World::new(2).await;
        let old = pattern(1000, 1);
        let fid = world.file("f", &old).await;
        let (alice, bob) = (world.user("alice"), world.user("bob"));
        let may = |rights: &str, bobs: &str| {
            let all = list(&[(ANYUSER, "l"), (ALICE, rights), (BOB, bobs)]);
            world.cell.set_list(Fid::root(OPEN), all);
        };
        let fetch = BeginFetch {
            fid,
            position: 0,
            length: 1000,
        };
        may("rl", "wl");
        assert_eq!(
            alice.call(&fetch).await.unwrap().access.capabilities.len(),
            2
        );
        assert_eq!(code(bob.call(&fetch).await), EACCES);
        assert_eq!(code(begin(&alice, fid, 1000).await), EACCES);
        assert_eq!(code(begin(&world.anybody(), fid, 1000).await), EACCES);
        let begun = begin(&bob, fid, 1000).await.unwrap();
        let next = begun.access.layout;
        world.write(fid, &next, &[0, 1], &pattern(1000, 2));
        // A store belongs to the user that began it.
        may("rwl", "wl");
        assert_eq!(code(extend(&alice, fid, begun.store, 1000).await), ESTALE);
        assert_eq!(code(end(&alice, fid, begun.store, 1000, &[]).await), ESTALE);
        let abort = AbortStore {
            fid,
            store: begun.store,
        };
        assert_eq!(code(alice.call(&abort).await), ESTALE);
        // A user that lost the right meanwhile cannot complete the store, but can abort it.
        may("rwl", "l");
        assert_eq!(code(extend(&bob, fid, begun.store, 1000).await), EACCES);
        assert_eq!(code(end(&bob, fid, begun.store, 1000, &[]).await), EACCES);
        bob.call(&abort).await.unwrap();
        world.cell.set_list(
            Fid::root(OPEN),
            list(&[(ANYUSER, "rlidwk"), (ALICE, "rlidwka")]),
        );
        assert!(world.read(fid).await == old);
        // Only a caller that may administer the directory may choose the layout of a new file.
        let new = world.machine.create(Fid::root(OPEN), "new").await;
        let shaped = BeginStore {
            fid: new,
            position: 0,
            length: 10,
            file_length: 10,
            shape: List::from_iter_cut([Shape::default()]),
        };
        assert_eq!(code(bob.call(&shaped).await), EACCES);
        let begun = alice.call(&shaped).await.unwrap();
        assert_eq!(
            begun.access.layout.objects.len(),
            1,
            "not as the policy says"
        );
    });
}

#[test]
fn a_store_that_is_given_up_leaves_the_old_bytes_and_frees_the_file() {
    run(async {
        let world = World::new(2).await;
        let old = pattern(1000, 1);
        let fid = world.file("f", &old).await;
        let (client, other) = (world.user("alice"), world.anybody());
        let begun = begin(&client, fid, 2000).await.unwrap();
        world.write(fid, &begun.access.layout, &[0, 1], &pattern(2000, 2));
        assert_eq!(world.versions(), 4);
        // Another client waits in vain.
        let busy = begin(&other, fid, 2000).await;
        assert_eq!(code(busy), AbortCode::EBUSY.to_plain().0);
        let store = begun.store;
        client.call(&AbortStore { fid, store }).await.unwrap();
        assert!(world.read(fid).await == old);
        // The devices remove the written data.
        world.versions_become(2).await;
        assert!(world.read(fid).await == old);
        assert_eq!(code(client.call(&AbortStore { fid, store }).await), ESTALE);
        assert_eq!(code(end(&client, fid, store, 2000, &[]).await), ESTALE);
        let begun = begin(&other, fid, 2000).await.unwrap();
        let new = pattern(2000, 3);
        world.write(fid, &begun.access.layout, &[0, 1], &new);
        end(&other, fid, begun.store, 2000, &[]).await.unwrap();
        assert!(world.read(fid).await == new);
    });
}

#[test]
fn a_late_removal_takes_nothing_of_the_next_store() {
    run(async {
        // The file has data in only one of two stripes so far.
        let world = World::with_policy(2, "=> osd, stripes=2, ssize=12;").await;
        let fid = world.file("f", &pattern(1000, 1)).await;
        let client = world.user("alice");
        let lost = begin(&client, fid, 8192).await.unwrap();
        let placed = lost.access.layout.objects[1];
        assert_eq!(placed.version, 0);
        world.write(fid, &lost.access.layout, &[0, 1], &pattern(4096, 2));
        // The devices execute the removal only after the next store has begun and ended.
        let late = Duration::from_secs(6);
        world.osds.set_fault(Fault::SlowPrunes(late));
        let store = lost.store;
        client.call(&AbortStore { fid, store }).await.unwrap();
        let given_up = Instant::now();
        let begun = loop {
            match begin(&client, fid, 8192).await {
                Ok(begun) => break begun,
                Err(cause) => assert_eq!(code(Err::<(), _>(cause)), AbortCode::EBUSY.to_plain().0),
            }
        };
        let next = begun.access.layout;
        let same = (next.objects[1].osd, next.objects[1].serial);
        assert_eq!(same, (placed.osd, placed.serial), "the same object");
        let new = pattern(4096, 3);
        world.write(fid, &next, &[0, 1], &new);
        end(&client, fid, begun.store, 8192, &[]).await.unwrap();
        assert!(given_up.elapsed() < late, "the test was too slow");
        let object = next.object(fid.vnode, fid.uniquifier, &placed);
        let versions = || world.osds.versions(placed.osd, object);
        until("the lost version is removed", async || {
            !versions().contains(&lost.access.layout.version)
        })
        .await;
        assert_eq!(versions(), [next.version]);
        assert!(world.read(fid).await == [&new[..], &new].concat());
    });
}

#[test]
fn a_silent_device_does_not_keep_others_from_what_a_store_gives_up() {
    run(async {
        let world = World::with_policy(4, "=> osd, stripes=4, ssize=12;").await;
        let fid = world.machine.create(Fid::root(OPEN), "f").await;
        let client = world.user("alice");
        let begun = begin(&client, fid, 4 << 12).await.unwrap();
        let layout = begun.access.layout;
        world.write(fid, &layout, &[0, 1, 2, 3], &pattern(1 << 12, 1));
        assert_eq!(world.versions(), 4);
        let first = layout.objects[0].osd;
        world.osds.fakes[first as usize - 2].set_fault(Fault::Silent);
        let store = begun.store;
        client.call(&AbortStore { fid, store }).await.unwrap();
        world.versions_become(1).await;
    });
}

#[test]
fn a_store_that_is_not_renewed_is_taken_over() {
    run(async {
        let world = World::new(2).await;
        let fid = world.file("f", &pattern(1000, 1)).await;
        let (first, second) = (world.user("alice"), world.anybody());
        let lost = begin(&first, fid, 1000).await.unwrap();
        world.write(fid, &lost.access.layout, &[0, 1], &pattern(1000, 2));
        // A renewed store stays valid.
        world.cell.wait_secs(u64::from(STORE_LEASE) - 5);
        extend(&first, fid, lost.store, 1000).await.unwrap();
        world.cell.wait_secs(u64::from(STORE_LEASE) - 5);
        assert_eq!(
            code(begin(&second, fid, 1000).await),
            AbortCode::EBUSY.to_plain().0
        );
        world.cell.wait_secs(10);
        let begun = loop {
            match begin(&second, fid, 1000).await {
                Ok(begun) => break begun,
                Err(cause) => assert_eq!(code(Err::<(), _>(cause)), AbortCode::EBUSY.to_plain().0),
            }
        };
        assert_eq!(code(extend(&first, fid, lost.store, 1000).await), ESTALE);
        assert_eq!(code(end(&first, fid, lost.store, 1000, &[]).await), ESTALE);
        let new = pattern(1000, 3);
        world.write(fid, &begun.access.layout, &[0, 1], &new);
        end(&second, fid, begun.store, 1000, &[]).await.unwrap();
        assert!(world.read(fid).await == new);
    });
}

#[test]
fn a_store_without_renewal_is_given_up() {
    run(async {
        let world = World::new(2).await;
        let old = pattern(1000, 1);
        let fid = world.file("f", &old).await;
        let lost = begin(&world.user("alice"), fid, 1000).await.unwrap();
        world.write(fid, &lost.access.layout, &[0, 1], &pattern(1000, 2));
        assert_eq!(world.versions(), 4);
        world.cell.wait_secs(u64::from(STORE_LEASE) + 5);
        world.versions_become(2).await;
        assert!(world.read(fid).await == old);
    });
}

#[test]
fn a_store_that_is_refused_at_its_end_is_given_up() {
    run(async {
        let world = World::new(2).await;
        let old = pattern(1000, 1);
        let fid = world.file("f", &old).await;
        let (client, admin) = (world.user("alice"), world.cell.admin().await);
        let over = AbortCode::VOVERQUOTA;
        let large = 8 << 20;
        // At the devices.
        let begun = begin(&client, fid, large).await.unwrap();
        world.write(fid, &begun.access.layout, &[0, 1], &pattern(1000, 2));
        assert_eq!(world.versions(), 4);
        admin.call(&common::quota(100)).await.unwrap();
        let refused = end(&client, fid, begun.store, large, &[]).await;
        assert_eq!(code(refused), over.to_plain().0);
        world.versions_become(2).await;
        // Through the file server.
        admin.call(&common::quota(0)).await.unwrap();
        let store = StoreData64 {
            fid,
            in_status: AfsStoreStatus::default(),
            position: 0,
            length: large,
            file_length: KEEP,
        };
        let new = pattern(large as usize, 3);
        let mut call = world.machine.connection.open(&store).await.unwrap();
        let half = new.len() / 2;
        call.write(new[..half].to_vec().into()).await.unwrap();
        // The server begins the store meanwhile.
        tokio::time::sleep(Duration::from_secs(1)).await;
        admin.call(&common::quota(100)).await.unwrap();
        call.write(new[half..].to_vec().into()).await.unwrap();
        call.finish();
        let refused: Result<StoreData64Reply, _> = call.results().await;
        assert_eq!(code(refused), over.0);
        world.versions_become(2).await;
        assert!(world.read(fid).await == old);
    });
}

#[test]
fn a_failed_write_of_a_client_is_stale_and_never_read() {
    run(async {
        let world = World::new(2).await;
        let old = pattern(1000, 1);
        let fid = world.file("f", &old).await;
        let client = world.user("alice");
        let begun = begin(&client, fid, 1000).await.unwrap();
        let eio = AbortCode::EIO.0;
        // Neither copy was written; a place that does not exist; more than was requested.
        let store = begun.store;
        assert_eq!(
            code(end(&client, fid, store, 1001, &[]).await),
            AbortCode::EINVAL.0
        );
        let begun = begin(&client, fid, 1000).await.unwrap();
        let store = begun.store;
        let outcome = end(&client, fid, store, 1000, &[(2, eio)]).await;
        assert_eq!(code(outcome), AbortCode::EINVAL.0);
        let begun = begin(&client, fid, 1000).await.unwrap();
        let store = begun.store;
        let outcome = end(&client, fid, store, 1000, &[(0, eio), (1, eio)]).await;
        assert_eq!(code(outcome), eio);
        assert!(world.read(fid).await == old, "nothing has changed");
        assert!(
            layout(&world.cell, fid)
                .unwrap()
                .objects
                .iter()
                .all(|p| !p.stale)
        );
        let begun = begin(&client, fid, 1000).await.unwrap();
        let new = pattern(1000, 2);
        world.write(fid, &begun.access.layout, &[1], &new);
        let status = world.machine.status(fid).await.status;
        let ended = end(&client, fid, begun.store, 1000, &[(0, eio)])
            .await
            .unwrap();
        assert_eq!(ended.status.data_version, status.data_version + 1);
        let after = layout(&world.cell, fid).unwrap();
        let stale: Vec<bool> = after.objects.iter().map(|placed| placed.stale).collect();
        assert_eq!(stale, [true, false]);
        for _ in 0..4 {
            assert!(world.read(fid).await == new);
        }
        // The next store may neither write to it nor read from it.
        let begun = begin(&client, fid, 1000).await.unwrap();
        let usable: Vec<bool> = begun
            .access
            .capabilities
            .iter()
            .map(|c| !c.is_empty())
            .collect();
        assert_eq!(usable, [false, true]);
        // Only the good copy is read.
        world.osds.fakes[after.objects[1].osd as usize - 2].set_fault(Fault::Abort(AbortCode::EIO));
        assert_eq!(code(world.machine.fetch(fid, 0, 1000).await), eio);
    });
}

#[test]
fn the_quota_holds_for_direct_stores() {
    run(async {
        let world = World::new(2).await;
        let fid = world.file("f", &pattern(1000, 1)).await;
        let client = world.user("alice");
        let admin = world.cell.admin().await;
        admin.call(&common::quota(100)).await.unwrap();
        let over = AbortCode::VOVERQUOTA.to_plain().0;
        // A store may exceed the quota a little, as for any file.
        assert_eq!(code(begin(&client, fid, 8 << 20).await), over);
        let begun = begin(&client, fid, 2000).await.unwrap();
        assert_eq!(code(extend(&client, fid, begun.store, 8 << 20).await), over);
        extend(&client, fid, begun.store, 3000).await.unwrap();
        let new = pattern(3000, 2);
        world.write(fid, &begun.access.layout, &[0, 1], &new);
        end(&client, fid, begun.store, 3000, &[]).await.unwrap();
        assert!(world.read(fid).await == new);
    });
}

#[test]
fn a_store_through_the_server_waits_for_a_direct_one() {
    run(async {
        let world = World::new(2).await;
        let fid = world.file("f", &pattern(1000, 1)).await;
        let client = world.user("alice");
        let begun = begin(&client, fid, 1000).await.unwrap();
        let mut new = pattern(1000, 2);
        let direct = async {
            // Gives the other store time to come first, if it can.
            tokio::time::sleep(Duration::from_millis(500)).await;
            world.write(fid, &begun.access.layout, &[0, 1], &new);
            end(&client, fid, begun.store, 1000, &[]).await.unwrap()
        };
        let through = store_within(&world.other, fid, 10, b"through", KEEP);
        let (ended, stored) = tokio::join!(direct, through);
        assert!(stored.unwrap().data_version > ended.status.data_version);
        new[10..17].copy_from_slice(b"through");
        assert!(world.read(fid).await == new, "both count");
    });
}
