//! Older bytes that archives keep for a time: of removed files, and superseded ones.
//!
//! The store of the volumes has them (`volume/src/operations/retired.rs`). One time holds for all
//! files of the server. A policy could not decide it: the directory of a removed file may be gone
//! when its time ends, and with it the policy and the path.

use std::sync::Arc;
use std::time::Duration;

use cellar_rpc::blocking;
use cellar_volume::{Error, FileType, RetiredFile, VnodeStatus, Volume};
use cellar_wire::afsosd::{OlderFile, OlderVersion};
use cellar_wire::ids::{AfsTime, Fid};
use cellar_wire::object::{ARCHIVE_COPIES_MAX, ArchiveCopies, ArchiveCopy, Contents};
use cellar_wire::{AfsName, List};
use tokio::sync::OwnedSemaphorePermit;
use tracing::{info, warn};

use super::super::Objects;
use super::super::archive::InArchives;

/// Longest pause between two searches for bytes whose time has passed.
const PAUSE_MAX: Duration = Duration::from_secs(3600);
/// Shortest pause.
const PAUSE_MIN: Duration = Duration::from_secs(1);

/// Bytes that archives have, and the status that says who may read them.
#[derive(Debug)]
pub struct OlderBytes {
    /// The file; a removed file has the status of its end.
    pub status: VnodeStatus,
    /// Whether the file was removed.
    pub is_removed: bool,
    copies: Vec<ArchiveCopy>,
}

impl OlderBytes {
    /// Looks for a file, or for a removed file; `None`: there is neither.
    ///
    /// # Errors
    /// The errors of the store.
    pub fn find(volume: &Volume, fid: Fid) -> cellar_volume::Result<Option<Self>> {
        match volume.status(fid) {
            Ok(status) => Ok(Some(Self {
                status,
                is_removed: false,
                copies: volume.archive_state(fid)?.copies,
            })),
            Err(Error::NoVnode(_)) => {
                let file = volume.retired_file(fid)?;
                Ok(file.map(|file| Self {
                    status: last_status(&file),
                    is_removed: true,
                    copies: file.copies.to_vec(),
                }))
            }
            Err(error) => Err(error),
        }
    }

    /// The bytes with that name, for [`ArchivedBytes`](super::super::ArchivedBytes). `None`: no
    /// archive has a good copy.
    pub fn named(&self, contents: Contents) -> Option<InArchives> {
        let good = self.copies.iter();
        let good = good.filter(|copy| copy.has(contents) && !copy.bad);
        let copies = ArchiveCopies::from_iter_cut(good.copied());
        let length = copies.first()?.length;
        Some(InArchives {
            fid: self.status.fid,
            contents,
            copies: Arc::new(copies),
            length,
        })
    }
}

/// The status that a removed file had at its end.
fn last_status(file: &RetiredFile) -> VnodeStatus {
    VnodeStatus {
        fid: file.fid,
        kind: FileType::File,
        mode: file.mode,
        link_count: 0,
        length: file.length,
        data_version: file.data_version,
        author: file.owner,
        owner: file.owner,
        group: file.group,
        parent: file.parent.vnode,
        parent_uniquifier: file.parent.uniquifier,
        client_time: file.client_time,
        server_time: file.removed,
    }
}

impl Objects {
    /// Keeps older bytes for that time from now on; zero: removals keep no copies, and superseded
    /// ones end soon. Without this call removals keep none, and superseded ones do not end. Only
    /// the first call has an effect.
    pub fn keep_older(&self, time: Duration) {
        if self.keep_older.set(time).is_ok() {
            for (_, partition) in self.volumes.partitions() {
                partition.keep_removed(!time.is_zero());
            }
        }
    }

    /// Begins a read of older bytes, which ends when the returned value is dropped. `None`: as many
    /// as may be in memory at a time are running.
    pub fn begin_older_read(&self) -> Option<OwnedSemaphorePermit> {
        self.older_reads.clone().try_acquire_owned().ok()
    }

    /// A file that is there, with its superseded bytes.
    ///
    /// # Errors
    /// The errors of the store.
    pub fn superseded(&self, volume: &Volume, fid: Fid) -> cellar_volume::Result<OlderFile> {
        let status = volume.status(fid)?;
        let copies = volume.superseded_copies(fid)?;
        Ok(OlderFile {
            parent: Fid {
                volume: fid.volume,
                vnode: status.parent,
                uniquifier: status.parent_uniquifier,
            },
            versions: self.versions(&copies),
            ..older_file(&status)
        })
    }

    /// A removed file, with the bytes that are kept.
    pub fn removed(&self, file: &RetiredFile) -> OlderFile {
        let removed = u64::from(file.removed.0);
        let copies: Vec<_> = file.copies.iter().map(|copy| (*copy, removed)).collect();
        OlderFile {
            removed,
            name: AfsName::new(file.name.clone()).unwrap_or_default(),
            parent: file.parent,
            versions: self.versions(&copies),
            ..older_file(&last_status(file))
        }
    }

    /// Copies, with the times from which their retention counts, by the bytes that they have.
    fn versions(&self, copies: &[(ArchiveCopy, u64)]) -> List<OlderVersion, ARCHIVE_COPIES_MAX> {
        let keep = self.keep_older.get().map(Duration::as_secs);
        let mut versions: Vec<OlderVersion> = Vec::new();
        for (copy, since) in copies.iter().filter(|(copy, _)| !copy.bad) {
            let until = keep.map_or(0, |keep| since.saturating_add(keep));
            let same = |known: &OlderVersion| {
                (known.volume, known.version) == (copy.volume.0, copy.version)
            };
            let mut version = match versions.iter().position(same) {
                Some(place) => versions.swap_remove(place),
                None => OlderVersion {
                    volume: copy.volume.0,
                    version: copy.version,
                    data_version: copy.data_version,
                    length: copy.length,
                    made: copy.made,
                    ..OlderVersion::default()
                },
            };
            version.made = version.made.min(copy.made);
            version.until = version.until.max(until);
            // A file has no more copies than fit.
            let _fits = version.archives.push(copy.osd);
            versions.push(version);
        }
        versions.sort_by_key(|version| (version.data_version, version.version));
        List::from_iter_cut(versions)
    }

    /// Ends older bytes whose time has passed, until the server stops.
    pub(super) async fn end_older(self: Arc<Self>) {
        let Some(keep) = self.keep_older.get().copied() else {
            return;
        };
        let pause = (keep / 8).clamp(PAUSE_MIN, PAUSE_MAX);
        while !self.is_stopping() {
            self.end_older_of(keep).await;
            tokio::time::sleep(pause).await;
        }
    }

    async fn end_older_of(self: &Arc<Self>, keep: Duration) {
        for (id, partition) in self.volumes.partitions() {
            let objects = self.clone();
            let before = AfsTime::after_1970(self.wall().saturating_sub(keep));
            let ended = blocking(move || {
                let mut go_on = || !objects.is_stopping();
                partition.expire(before, &mut go_on)
            });
            match ended.await {
                Ok(ended) if ended == Default::default() => {}
                Ok(ended) => info!(
                    partition = %id,
                    removed_files = ended.files,
                    crowded_out = ended.crowded_out,
                    superseded = ended.versions,
                    "the time of older bytes in archives has passed"
                ),
                Err(error) => {
                    warn!(partition = %id, %error, "older bytes in archives are kept for longer");
                }
            }
        }
    }
}

fn older_file(status: &VnodeStatus) -> OlderFile {
    OlderFile {
        fid: status.fid,
        mode: status.mode.into(),
        owner: status.owner,
        length: status.length,
        data_version: status.data_version,
        modified: status.client_time,
        ..OlderFile::default()
    }
}
