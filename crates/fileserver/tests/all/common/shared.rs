//! Two servers whose volumes have files in objects on the same devices.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cellar_fileserver::Locations;
use cellar_fileserver::protection::BoxFuture;
use cellar_rpc::CallError;
use cellar_wire::afsvol::READONLY;
use cellar_wire::ids::{Fid, VolumeId};
use cellar_wire::rxafs::AfsFetchStatus;
use cellar_wire::vl::{Site, VLSF_RWVOL, VldbEntry, VolumeNameArgument};
use cellar_wire::{AbortCode, List};

use super::osds::{KEEP, Osds, THRESHOLD, layout, pattern, read, set_policy};
use super::volser::{RO, Volser, clone_for_release};
use super::{Cell, Machine, OPEN, store_within};

pub(crate) const BIG: usize = 3 * THRESHOLD as usize + 777;

pub(crate) const SHAPES: &[(u32, &str)] = &[
    (2, "=> osd, stripes=3, ssize=12;"),
    (3, "=> osd, stripes=2, copies=2, ssize=13;"),
    (4, "=> osd, ec=2+1, ssize=12;"),
];

/// A store that keeps the rest of the file.
pub(crate) async fn store(
    machine: &Machine,
    fid: Fid,
    position: u64,
    bytes: &[u8],
) -> Result<AfsFetchStatus, CallError> {
    store_within(machine, fid, position, bytes, KEEP).await
}

pub(crate) fn of(volume: VolumeId, fid: Fid) -> Fid {
    Fid { volume, ..fid }
}

/// The answers of a location database to one server: whether RW volumes are on it.
pub(crate) struct Here {
    pub(crate) is_here: AtomicBool,
    /// Whether the database does not answer.
    pub(crate) is_away: AtomicBool,
}

impl Here {
    pub(crate) fn of(cell: &Cell, is_here: bool) -> Arc<Self> {
        let here = Arc::new(Self {
            is_here: is_here.into(),
            is_away: AtomicBool::new(false),
        });
        cell.server.use_locations(here.clone());
        here
    }
}

impl Locations for Here {
    fn entry<'a>(
        &'a self,
        name: &'a VolumeNameArgument,
    ) -> BoxFuture<'a, Result<VldbEntry, AbortCode>> {
        if self.is_away.load(Ordering::Relaxed) {
            return Box::pin(std::future::ready(Err(AbortCode::RX_CALL_DEAD)));
        }
        let number = name.to_string().parse().unwrap();
        let server = match self.is_here.load(Ordering::Relaxed) {
            true => 0x7f00_0001,
            false => 0xc000_0201,
        };
        let entry = VldbEntry {
            volume_ids: [VolumeId(number), VolumeId(0), VolumeId(0)],
            sites: List::from_iter_cut([Site {
                server,
                partition: 0,
                flags: VLSF_RWVOL,
            }]),
            ..VldbEntry::default()
        };
        Box::pin(std::future::ready(Ok(entry)))
    }
}

/// Creates files of all layouts in the scratch volume, and returns their contents. The last one is
/// not in objects.
pub(crate) async fn fill(cell: &Cell, machine: &Machine) -> Vec<(Fid, Vec<u8>)> {
    let mut files = Vec::new();
    for policy in [1, 2, 3, 4] {
        set_policy(cell, OPEN, policy);
        let fid = machine
            .create(Fid::root(OPEN), &format!("file{policy}"))
            .await;
        let bytes = pattern(BIG + policy as usize, policy.into());
        store(machine, fid, 0, &bytes).await.unwrap();
        assert!(layout(cell, fid).is_some());
        files.push((fid, bytes));
    }
    set_policy(cell, OPEN, 1);
    let fid = machine.create(Fid::root(OPEN), "small").await;
    let bytes = pattern(5000, 9);
    store(machine, fid, 0, &bytes).await.unwrap();
    files.push((fid, bytes));
    files
}

/// Devices that both servers use, and an administrator at each.
pub(crate) async fn without_files(here: &Cell, there: &Cell) -> (Osds, Volser, Volser) {
    let osds = Osds::start(here, 4, SHAPES).await;
    osds.attach(there, "test.cell").await;
    (
        osds,
        Volser(here.admin().await),
        Volser(there.admin().await),
    )
}

/// Devices that both servers use, an administrator at each, and the first one's files.
pub(crate) async fn one_cell(
    here: &Cell,
    there: &Cell,
    client: &Machine,
) -> (Osds, Volser, Volser, Vec<(Fid, Vec<u8>)>) {
    let (osds, source, target) = without_files(here, there).await;
    let files = fill(here, client).await;
    (osds, source, target, files)
}

/// Makes the clone for a release, and an empty site for it at the other server.
pub(crate) async fn ro_site(source: &Volser, target: &Volser) {
    clone_for_release(source, true).await;
    let to = target.create("scratch.readonly", READONLY, OPEN, RO).await;
    target.flags(to, 3).await;
    target.end(to).await;
}

pub(crate) async fn check(machine: &Machine, volume: VolumeId, files: &[(Fid, Vec<u8>)]) {
    for (fid, bytes) in files {
        assert!(
            read(machine, of(volume, *fid)).await == *bytes,
            "{fid} in {volume}"
        );
    }
}
