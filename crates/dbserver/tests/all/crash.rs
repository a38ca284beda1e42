//! Power failures during creation of volumes and users. The servers start at once, have all
//! acknowledged changes, and find every entry by its name and its ids.
//!
//! The tests of `celldb` fail every operation and tear unsynced writes. Here every seventh
//! operation is enough to show that a call is one transaction.

use std::io;
use std::sync::{Arc, Mutex};

use cellar_celldb::{CellDb, Embedded, StorageBackend};
use cellar_dbserver::{Identity, Pr, Vl};
use cellar_wire::vl::{
    CreateEntryN, DeleteEntry, GetEntryByIDN, GetEntryByNameN, ListEntryN, NvldbEntry,
    ReplaceEntryN, Site, VLF_RWEXISTS, VLSF_RWVOL,
};
use cellar_wire::{AbortCode, AfsTime, List, ViceId, VolumeId, pr};

const ADMIN: Identity = Identity::Superuser;

#[derive(Debug, Default)]
struct Platter {
    durable: Vec<u8>,
    current: Vec<u8>,
    operations: u64,
    fails_at: Option<u64>,
}

/// A disk that keeps synced data, and fails permanently at its n-th write, sync or resize.
#[derive(Clone, Debug, Default)]
pub(crate) struct Disk(Arc<Mutex<Platter>>);

impl Disk {
    /// Flips a bit at every occurrence of `bytes`. Returns the number of occurrences.
    pub(crate) fn flip_in(&self, bytes: &[u8], bit: usize) -> usize {
        let mut platter = self.0.lock().unwrap();
        let image = &mut platter.current;
        let places: Vec<usize> = (0..image.len().saturating_sub(bytes.len()))
            .filter(|&at| image[at..].starts_with(bytes))
            .collect();
        for at in &places {
            image[at + bit / 8] ^= 1 << (bit % 8);
        }
        places.len()
    }

    /// A new disk with the same contents.
    pub(crate) fn copy(&self) -> Self {
        Self::of(self.0.lock().unwrap().current.clone(), None)
    }

    fn of(image: Vec<u8>, fails_at: Option<u64>) -> Self {
        let current = image.clone();
        Self(Arc::new(Mutex::new(Platter {
            durable: image,
            current,
            operations: 0,
            fails_at,
        })))
    }

    fn step(&self) -> io::Result<std::sync::MutexGuard<'_, Platter>> {
        let mut platter = self.0.lock().unwrap();
        platter.operations += 1;
        match platter.fails_at {
            Some(n) if platter.operations >= n => Err(io::Error::other("the power is gone")),
            _ => Ok(platter),
        }
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.lock().unwrap().current.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let platter = self.0.lock().unwrap();
        let from = offset as usize;
        let bytes = platter.current.get(from..from + out.len());
        out.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.step()?.current.resize(len as usize, 0);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut platter = self.step()?;
        platter.durable = platter.current.clone();
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut platter = self.step()?;
        let end = offset as usize + data.len();
        if platter.current.len() < end {
            platter.current.resize(end, 0);
        }
        platter.current[offset as usize..end].copy_from_slice(data);
        Ok(())
    }
}

struct Cell {
    vl: Vl,
    pr: Pr,
}

fn open(disk: Disk) -> Option<Cell> {
    let db: Arc<dyn CellDb> = Arc::new(Embedded::with_backend(disk).ok()?);
    let vl = Vl::open(db.clone(), Arc::new(|| AfsTime(5))).ok()?;
    let pr = Pr::open(db, Arc::new(|| AfsTime(5)), "test.cell").ok()?;
    Some(Cell { vl, pr })
}

fn volume(name: &str, id: u32) -> NvldbEntry {
    NvldbEntry {
        name: name.try_into().unwrap(),
        sites: List::from_iter_cut([Site {
            server: 0x0a00_0001,
            partition: 0,
            flags: VLSF_RWVOL,
        }]),
        volume_ids: [id, id + 1, id + 2].map(VolumeId),
        flags: VLF_RWEXISTS,
        ..NvldbEntry::default()
    }
}

/// The n-th step: creates, renames and deletes volumes, users and memberships.
fn step(cell: &Cell, n: u32) -> Result<(), AbortCode> {
    let id = n / 4 * 10 + 10;
    match n % 4 {
        0 => cell
            .vl
            .ask(
                ADMIN,
                CreateEntryN {
                    newentry: volume(&format!("v{id}"), id),
                },
            )
            .map(drop),
        1 => {
            let mut newentry = volume(&format!("renamed{id}"), id);
            newentry.volume_ids[1] = VolumeId(id + 5);
            let (volid, voltype, releasetype) = (VolumeId(id), 0, 7);
            cell.vl
                .ask(
                    ADMIN,
                    ReplaceEntryN {
                        volid,
                        voltype,
                        newentry,
                        releasetype,
                    },
                )
                .map(drop)
        }
        2 => {
            let name = format!("user{id}").try_into().unwrap();
            let owner = ViceId(0);
            let user = cell
                .pr
                .ask(
                    ADMIN,
                    pr::NewEntry {
                        name,
                        flag: 0,
                        owner,
                    },
                )?
                .id;
            let add = pr::AddToGroup {
                uid: user,
                gid: ViceId::ADMINISTRATORS,
            };
            cell.pr.ask(ADMIN, add).map(drop)
        }
        _ if n % 8 == 7 => cell
            .vl
            .ask(
                ADMIN,
                DeleteEntry {
                    volid: VolumeId(id),
                    voltype: 0,
                },
            )
            .map(drop),
        _ => Ok(()),
    }
}

const STEPS: u32 = 16;

/// Returns the number of steps that were acknowledged before the disk failed.
fn run(disk: Disk) -> u32 {
    let Some(cell) = open(disk) else { return 0 };
    (0..STEPS)
        .find(|n| step(&cell, *n).is_err())
        .unwrap_or(STEPS)
}

fn check(cell: &Cell, acknowledged: u32, at: u64) {
    let mut previous_index = 0;
    let mut found = 0;
    loop {
        let reply = cell.vl.ask(ADMIN, ListEntryN { previous_index }).unwrap();
        previous_index = reply.next_index;
        if previous_index == 0 {
            break;
        }
        found += 1;
        let entry = reply.entry;
        let volumename = entry.name.as_bytes().try_into().unwrap();
        let by_name = cell
            .vl
            .ask(ADMIN, GetEntryByNameN { volumename })
            .unwrap()
            .entry;
        assert_eq!(by_name, entry);
        for (voltype, volid) in entry.volume_ids.into_iter().enumerate() {
            let by_id = GetEntryByIDN {
                volid,
                voltype: voltype as i32,
            };
            assert_eq!(cell.vl.ask(ADMIN, by_id).unwrap().entry, entry);
        }
    }
    let made = |steps: u32| (0..steps).filter(|n| n % 4 == 0).count() as i32;
    let deleted = |steps: u32| (0..steps).filter(|n| n % 8 == 7).count() as i32;
    let expected = [acknowledged, acknowledged + 1].map(|steps| made(steps) - deleted(steps));
    assert!(
        expected.contains(&found),
        "operation {at}: {found}, {acknowledged} steps"
    );
    let users = cell
        .pr
        .ask(
            ADMIN,
            pr::ListEntries {
                flag: pr::PRUSERS,
                start_index: 0,
            },
        )
        .unwrap();
    let users = users.entries.len() as u32 - 1;
    let expected = (0..acknowledged).filter(|n| n % 4 == 2).count() as u32;
    assert!(
        users == expected || users == expected + 1,
        "operation {at}: {users} users"
    );
    let members = pr::ListElements {
        id: ViceId::ADMINISTRATORS,
    };
    let members = cell.pr.ask(ADMIN, members).unwrap().list.len() as u32;
    assert!(members >= expected && members <= users);
}

#[test]
fn a_call_is_whole_or_absent_after_power_loss() {
    let empty = Disk::default();
    drop(Embedded::with_backend(empty.clone()).unwrap());
    let empty = empty.0.lock().unwrap().durable.clone();
    let whole = Disk::of(empty.clone(), None);
    assert_eq!(run(whole.clone()), STEPS);
    let operations = whole.0.lock().unwrap().operations;
    for n in (1..=operations).step_by(7) {
        let disk = Disk::of(empty.clone(), Some(n));
        let acknowledged = run(disk.clone());
        let platter = disk.0.lock().unwrap();
        for image in [&platter.durable, &platter.current] {
            let cell = open(Disk::of(image.clone(), None)).unwrap();
            check(&cell, acknowledged, n);
        }
    }
}
