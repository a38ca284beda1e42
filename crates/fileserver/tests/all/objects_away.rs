//! New files while devices are missing, or not known yet. They never go to the local disk, and are
//! refused only if no devices can hold their bytes.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::osds::{Database, KEEP, Osds, THRESHOLD, layout, pattern, read, set_policy};
use crate::common::{Cell, Machine, OPEN, code, run, store_within};
use cellar_fileserver::protection::BoxFuture;
use cellar_fileserver::{ObjectConfig, PolicyAnswer, PolicyList};
use cellar_objects::DeviceList;
use cellar_objects::fake::Fault;
use cellar_rpc::CallError;
use cellar_wire::afsosd::{BeginStore, BeginStoreReply};
use cellar_wire::ids::Fid;
use cellar_wire::object::{Capability, CapabilityBody, Layout};
use cellar_wire::osddb::OsdListed;
use cellar_wire::{AbortCode, AfsString, Encode, List, afsosd};

const BIG: usize = 3 * THRESHOLD as usize + 777;

fn devices_of(layout: &Layout) -> Vec<u32> {
    layout.objects.iter().map(|placed| placed.osd).collect()
}

impl Osds {
    /// Marks exactly these devices as dead in the database.
    fn set_dead(&self, dead: &[u32]) {
        let mut listed = self.database.listed.lock();
        for device in listed.iter_mut() {
            device.dead = dead.contains(&device.entry.id);
        }
        self.devices.update(&listed);
    }
}

/// Each layout with exactly as many devices as it has objects, and one of them dead.
#[test]
fn with_a_device_of_the_layout_dead_new_files_are_stored_all_the_same() {
    for (policy, devices, stripes, stale) in [
        ("=> osd, stripes=3, ssize=12;", 3, 2, 0),
        ("=> osd, stripes=1;", 2, 1, 0),
        ("=> osd, copies=2;", 2, 1, 1),
        ("=> osd, stripes=2, copies=2, ssize=12;", 4, 2, 1),
        ("=> osd, ec=2+1, ssize=12;", 3, 2, 1),
        ("=> ec=4+2, ssize=12;", 6, 4, 1),
    ] {
        let cell = Cell::start();
        let machine = Machine::new(&cell, 1);
        run(async {
            let osds = Osds::start(&cell, devices, &[(2, policy)]).await;
            set_policy(&cell, OPEN, 2);
            for dead in [2, 1 + devices] {
                osds.set_dead(&[dead]);
                let calls = osds.fakes[dead as usize - 2].calls();
                let title = format!("without {dead}");
                let fid = machine.create(Fid::root(OPEN), &title).await;
                let bytes = pattern(BIG, dead.into());
                let stored = store_within(&machine, fid, 0, &bytes, KEEP).await;
                assert!(stored.is_ok(), "{policy} without {dead}: {stored:?}");
                let made = layout(&cell, fid).expect("it is in objects");
                assert_eq!(made.shape.stripes, stripes, "{policy}");
                let missing = made.objects.iter().filter(|placed| placed.stale).count();
                assert_eq!(missing, stale, "{policy}: {made:?}");
                assert!(read(&machine, fid).await == bytes);
                let asked = osds.fakes[dead as usize - 2].calls();
                assert_eq!(asked, calls, "a dead device is not asked");
                // The next store, and a file that is replaced.
                store_within(&machine, fid, 5, b"new", KEEP).await.unwrap();
                store_within(&machine, fid, 0, &bytes, 0).await.unwrap();
                assert!(read(&machine, fid).await == bytes);
            }
            osds.set_dead(&[]);
            let fid = machine.create(Fid::root(OPEN), "whole").await;
            store_within(&machine, fid, 0, &pattern(BIG, 9), KEEP)
                .await
                .unwrap();
            let made = layout(&cell, fid).unwrap();
            assert!(made.objects.iter().all(|placed| !placed.stale), "{policy}");
            assert_eq!(
                made.objects.len(),
                devices.min(made.objects.len() as u32) as usize
            );
        });
    }
}

/// With one device more than the layout has objects, nothing is missing.
#[test]
fn a_spare_device_takes_what_a_dead_one_would_have() {
    for policy in ["=> osd, stripes=3;", "=> osd, copies=3;", "=> osd, ec=2+1;"] {
        let cell = Cell::start();
        let machine = Machine::new(&cell, 1);
        run(async {
            let osds = Osds::start(&cell, 4, &[(2, policy)]).await;
            set_policy(&cell, OPEN, 2);
            osds.set_dead(&[3]);
            let fid = machine.create(Fid::root(OPEN), "f").await;
            store_within(&machine, fid, 0, &pattern(BIG, 1), KEEP)
                .await
                .unwrap();
            let made = layout(&cell, fid).unwrap();
            let mut on = devices_of(&made);
            on.sort_unstable();
            assert_eq!(on, [2, 4, 5], "{policy}");
            assert!(made.objects.iter().all(|placed| !placed.stale));
        });
    }
}

/// A file is refused if its bytes have no place. The code is not "full". The bytes do not go to the
/// local disk, even if only their size sends them to devices.
#[test]
fn without_devices_for_the_bytes_it_is_eio_and_nothing_lies_here() {
    for policy in ["=> osd, ec=2+1;", "=> ec=2+1;", "=> osd;", ""] {
        let cell = Cell::start();
        let machine = Machine::new(&cell, 1);
        run(async {
            let osds = Osds::start(&cell, 3, &[(2, policy), (3, "=> osd;")]).await;
            let id = if policy.is_empty() { 1 } else { 2 };
            set_policy(&cell, OPEN, id);
            let dead: &[u32] = if policy.contains("ec") {
                &[2, 4]
            } else {
                &[2, 3, 4]
            };
            osds.set_dead(dead);
            let fid = machine.create(Fid::root(OPEN), "f").await;
            let stored = store_within(&machine, fid, 0, &pattern(BIG, 1), KEEP).await;
            assert_eq!(code(stored, policy), AbortCode::EIO.0, "{policy}");
            assert_eq!(machine.status(fid).await.status.length, 0);
            assert_eq!(layout(&cell, fid), None);
            osds.set_dead(&[]);
            store_within(&machine, fid, 0, &pattern(BIG, 1), KEEP)
                .await
                .unwrap();
            assert!(layout(&cell, fid).is_some());
        });
    }
}

/// A client that stores at the devices directly.
#[test]
fn a_direct_store_of_a_new_file_goes_on_without_a_dead_device() {
    let cell = Cell::start();
    let machine = Machine::new(&cell, 1);
    run(async {
        let policies = [(2, "=> osd, ec=2+1;"), (3, "=> osd, stripes=3;")];
        let osds = Osds::start(&cell, 3, &policies).await;
        osds.set_dead(&[4]);
        let service = afsosd::PACKAGE.service_id;
        let security = cellar_rpc::Security::null();
        let client = machine.port.connect(cell.address(), service, security);
        for (policy, places) in [(2, 3), (3, 2)] {
            set_policy(&cell, OPEN, policy);
            let title = format!("f{policy}");
            let fid = machine.create(Fid::root(OPEN), &title).await;
            let begun = BeginStore {
                fid,
                position: 0,
                length: BIG as u64,
                file_length: BIG as u64,
                shape: List::default(),
            };
            let BeginStoreReply { access, .. } = client.call(&begun).await.unwrap();
            let on = devices_of(&access.layout);
            assert_eq!(on.len(), places);
            let data = access.layout.shape.stripes as usize;
            assert!(!on[..data].contains(&4), "{on:?}");
        }
    });
}

/// A device with a failed disk answers that it has no free space, before the database knows it.
#[test]
fn a_device_that_takes_no_changes_gets_no_new_file() {
    let cell = Cell::start();
    let machine = Machine::new(&cell, 1);
    run(async {
        let osds = Osds::start(&cell, 2, &[(2, "=> osd;")]).await;
        set_policy(&cell, OPEN, 2);
        osds.fakes[0].set_fault(Fault::Stopped);
        for n in 0..6 {
            let fid = machine.create(Fid::root(OPEN), &format!("f{n}")).await;
            let stored = store_within(&machine, fid, 0, &pattern(BIG, n), KEEP).await;
            assert!(stored.is_ok(), "{stored:?}");
            assert_eq!(devices_of(&layout(&cell, fid).unwrap()), [3]);
        }
    });
}

/// A database that gives no answer before a test permits it.
struct Gate {
    database: Arc<Database>,
    opened: AtomicBool,
}

impl Gate {
    async fn passed(&self) -> Result<(), CallError> {
        match self.opened.load(Ordering::Acquire) {
            true => Ok(()),
            false => Err(CallError::Dead),
        }
    }
}

impl DeviceList for Gate {
    fn list<'a>(
        &'a self,
    ) -> Pin<Box<dyn Future<Output = Result<Vec<OsdListed>, CallError>> + Send + 'a>> {
        Box::pin(async move {
            self.passed().await?;
            self.database.list().await
        })
    }
}

impl PolicyList for Gate {
    fn policies(&self, known: u64) -> BoxFuture<'_, PolicyAnswer> {
        Box::pin(async move {
            self.passed().await?;
            self.database.policies(known).await
        })
    }
}

#[test]
fn a_store_waits_for_a_database_that_comes_after_the_file_server() {
    waits_for_the_database(2);
}

#[test]
fn a_store_waits_also_where_only_the_size_sends_the_file_to_devices() {
    waits_for_the_database(1);
}

/// A file server that starts before its database. The volume has that policy.
fn waits_for_the_database(policy: u32) {
    let policies = [(2, "=> osd;")];
    let (cell, devices_of_another) = (Cell::start(), Cell::start());
    let machine = Machine::new(&cell, 1);
    run(async {
        let osds = Osds::start(&devices_of_another, 1, &policies).await;
        let gate = Arc::new(Gate {
            database: osds.database.clone(),
            opened: AtomicBool::new(false),
        });
        cell.server.expect_objects();
        set_policy(&cell, OPEN, policy);
        let fid = machine.create(Fid::root(OPEN), "f").await;
        let bytes = pattern(BIG, 1);
        let small = machine.create(Fid::root(OPEN), "small").await;
        let few = &bytes[..1000];
        // Volumes without a policy do not wait.
        let begun = Instant::now();
        set_policy(&cell, OPEN, 0);
        store_within(&machine, small, 0, few, KEEP).await.unwrap();
        assert!(begun.elapsed() < Duration::from_secs(5));
        set_policy(&cell, OPEN, policy);
        // The database was not even asked yet: the client must retry.
        let outcomes = tokio::join!(
            store_within(&machine, fid, 0, &bytes, KEEP),
            store_within(&machine, small, 0, few, KEEP),
        );
        assert_eq!(code(outcomes.0, "large"), AbortCode::VBUSY.0);
        assert_eq!(code(outcomes.1, "small"), AbortCode::VBUSY.0);
        assert_eq!(machine.status(fid).await.status.length, 0);
        // The list arrives while a store waits. No device has sent a heartbeat yet; the store waits
        // for that too.
        let config = ObjectConfig {
            cell: AfsString::new("test.cell".to_owned()).unwrap(),
            devices: gate.clone(),
            policies: gate.clone(),
            seal: Arc::new(|body: &CapabilityBody| Capability::new(body.to_xdr()).unwrap()),
            location: String::new(),
            owner: String::new(),
        };
        cell.server.use_objects(&cell.runtime, &cell.port, config);
        let heard = osds.database.listed.lock()[0].clone();
        let silent = |listed: &mut OsdListed| {
            (listed.state.silence, listed.state.free) = (u32::MAX, 0);
            listed.state.writable = false;
        };
        silent(&mut osds.database.listed.lock()[0]);
        let opens = async {
            // The store waits before each of the two events.
            tokio::time::sleep(Duration::from_secs(2)).await;
            gate.opened.store(true, Ordering::Release);
            tokio::time::sleep(Duration::from_secs(3)).await;
            osds.database.listed.lock()[0] = heard;
        };
        let (stored, ()) = tokio::join!(store_within(&machine, fid, 0, &bytes, KEEP), opens);
        assert!(stored.is_ok(), "policy {policy}: {stored:?}");
        assert_eq!(devices_of(&layout(&cell, fid).unwrap()), [2]);
        assert!(read(&machine, fid).await == bytes);
        // A file for this server is on this server.
        store_within(&machine, small, 0, few, KEEP).await.unwrap();
        assert_eq!(layout(&cell, small).is_some(), policy == 2);
    });
}

/// A device that fails in different ways while a new file is written. Neither the list nor an
/// earlier answer shows the failure.
#[test]
fn a_new_file_goes_elsewhere_when_its_device_fails_under_it() {
    for (fault, policy) in [
        (Fault::Writes(AbortCode::EIO), "=> osd;"),
        (
            Fault::Writes(AbortCode::ENOSPC),
            "=> osd, stripes=2, ssize=16;",
        ),
        (
            Fault::Midway(AbortCode::EIO),
            "=> osd, stripes=2, ssize=16;",
        ),
    ] {
        let cell = Cell::start();
        let machine = Machine::new(&cell, 1);
        run(async {
            let osds = Osds::start(&cell, 3, &[(2, policy)]).await;
            set_policy(&cell, OPEN, 2);
            osds.fakes[1].set_fault(fault);
            for number in 0..8 {
                let fid = machine.create(Fid::root(OPEN), &format!("f{number}")).await;
                let bytes = pattern(BIG * 5, number);
                let stored = store_within(&machine, fid, 0, &bytes, KEEP).await;
                assert!(stored.is_ok(), "{fault:?}: {stored:?}");
                let on = devices_of(&layout(&cell, fid).unwrap());
                assert!(!on.contains(&3), "{on:?}");
                assert!(read(&machine, fid).await == bytes);
            }
            // All devices fail: the device's answer decides.
            osds.set_fault(Fault::Writes(AbortCode::ENOSPC));
            let fid = machine.create(Fid::root(OPEN), "full").await;
            let stored = store_within(&machine, fid, 0, &pattern(BIG, 1), KEEP).await;
            assert_eq!(code(stored, "full"), AbortCode::VDISKFULL.0);
            assert_eq!(layout(&cell, fid), None);
        });
    }
}

/// The server of a device stops just after it answered.
#[test]
fn a_new_file_goes_elsewhere_when_the_server_of_its_device_has_just_gone() {
    let cell = Cell::start();
    let machine = Machine::new(&cell, 1);
    run(async {
        let osds = Osds::start(&cell, 3, &[(2, "=> osd;")]).await;
        set_policy(&cell, OPEN, 2);
        for (when, gone) in [("before", false), ("after", true)] {
            for n in 0..6 {
                let fid = machine.create(Fid::root(OPEN), &format!("{when}{n}")).await;
                let stored = store_within(&machine, fid, 0, &pattern(BIG, n), KEEP).await;
                assert!(stored.is_ok(), "{when}: {stored:?}");
                assert!(!gone || devices_of(&layout(&cell, fid).unwrap()) != [3]);
            }
            osds.fakes[1].kill();
        }
    });
}
