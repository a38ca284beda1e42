//! The calls of an archival device.

use std::sync::Arc;

use cellar_rpc::{IncomingCall, blocking};
use cellar_wire::List;
use cellar_wire::object::ObjectId;
use cellar_wire::osd::{
    Checksum, ChecksumReply, DigestReply, ExamineReply, ListObjectsReply, Needed, ObjectInfo, Read,
    ReadReply, SUM_MD5, VersionInfo, Write, WriteReply, digest_words,
};
use tokio::time::timeout;

use super::{ArchivalDevice, Catalogue, Copy};
use crate::device::Device;
use crate::limits::{STREAM_PATIENCE, WRITE_PIECE_BYTES};
use crate::refusal::Refusal;
use crate::server::Server;
use crate::write::gather;

/// Runs work on the catalogue, which may wait for the disk.
async fn on_catalogue<T: Send + 'static>(
    archive: &ArchivalDevice,
    work: impl FnOnce(&Catalogue) -> Result<T, cellar_celldb::Error> + Send + 'static,
) -> Result<T, Refusal> {
    let catalogue = archive.catalogue.clone();
    Ok(blocking(move || work(&catalogue)).await?)
}

impl ArchivalDevice {
    /// Writes a whole object. If it exists with the same bytes, the call succeeds.
    pub(crate) async fn write(
        &self,
        call: &mut IncomingCall,
        arguments: &Write,
        now: u64,
    ) -> Result<WriteReply, Refusal> {
        let Write {
            object,
            base,
            version,
            position,
            length,
            ..
        } = *arguments;
        if base != 0 || position != 0 {
            return Err(Refusal::OnArchive);
        }
        let incoming = self.begin_put(object, version, length);
        let mut left = length;
        'all: while left > 0 {
            for piece in gather(call, &mut left, WRITE_PIECE_BYTES.min(length)).await? {
                if !incoming.send(piece).await {
                    break 'all;
                }
            }
        }
        let put = incoming.finish().await;
        self.note(&put);
        let copy = Copy {
            version,
            receipt: put?,
            created: now,
            removed: 0,
        };
        let session = self.session();
        on_catalogue(self, move |catalogue| {
            catalogue.enter(object, &copy)?;
            catalogue.keep_session(session)
        })
        .await?;
        Ok(WriteReply { length })
    }

    /// Sends a whole object, and succeeds only if its bytes are those that were written.
    pub(crate) async fn read(
        &self,
        call: &mut IncomingCall,
        arguments: &Read,
    ) -> Result<ReadReply, Refusal> {
        let Read {
            object,
            version,
            position,
            length,
            ..
        } = *arguments;
        let copy = self.copy(object, version).await?;
        if position != 0 || length < copy.receipt.length {
            return Err(Refusal::OnArchive);
        }
        let mut outgoing = self.begin_get(object, &copy);
        call.reply(&copy.receipt.length);
        while let Some(piece) = outgoing.next().await {
            let sent = timeout(STREAM_PATIENCE, call.write(piece)).await;
            sent.map_err(|_| Refusal::StoppedSending)??;
        }
        let got = outgoing.finish().await;
        self.note(&got);
        got?;
        Ok(ReadReply {})
    }

    async fn copy(&self, object: ObjectId, version: u64) -> Result<Copy, Refusal> {
        let found = on_catalogue(self, move |catalogue| catalogue.present(object, version));
        found.await?.ok_or(Refusal::NoCopy)
    }

    /// The MD5 of the bytes that were written.
    pub(crate) async fn checksum(&self, arguments: &Checksum) -> Result<ChecksumReply, Refusal> {
        if arguments.sums != SUM_MD5 {
            return Err(Refusal::OnArchive);
        }
        let copy = self.copy(arguments.object, arguments.version).await?;
        Ok(ChecksumReply {
            length: copy.receipt.length,
            crc32c: 0,
            sha256: [0; 8],
            md5: digest_words(&copy.receipt.md5),
        })
    }

    /// The length and sums of the bytes that were written.
    pub(crate) async fn digest(
        &self,
        object: ObjectId,
        version: u64,
    ) -> Result<DigestReply, Refusal> {
        let receipt = self.copy(object, version).await?.receipt;
        Ok(DigestReply {
            length: receipt.length,
            blake3: digest_words(&receipt.blake3),
            md5: digest_words(&receipt.md5),
        })
    }

    /// The versions of an object. Asks the archive whether it still has them.
    pub(crate) async fn examine(&self, object: ObjectId) -> Result<ExamineReply, Refusal> {
        let copies = on_catalogue(self, move |catalogue| catalogue.of(object)).await?;
        let mut there = Vec::new();
        for copy in copies.iter().filter(|copy| copy.removed == 0) {
            if self.length(object, copy.version).await? == Some(copy.receipt.length) {
                there.push(*copy);
            }
        }
        match there.is_empty() {
            true => Err(Refusal::NoCopy),
            false => Ok(ExamineReply {
                info: info(object, &there),
            }),
        }
    }

    /// A page of the objects of a volume (0: of all), removed ones or present ones.
    pub(crate) async fn list(
        &self,
        volume: u32,
        after: ObjectId,
        limit: usize,
        removed: bool,
    ) -> Result<ListObjectsReply, Refusal> {
        let listed = on_catalogue(self, move |catalogue| {
            let mut all: Vec<ObjectInfo> = Vec::new();
            let mut from = (after != ObjectId::default()).then_some((after, u64::MAX));
            loop {
                let page = catalogue.page(from, limit)?;
                let Some((object, copy)) = page.last() else {
                    return Ok((all, false));
                };
                from = Some((*object, copy.version));
                for (object, copy) in &page {
                    let wanted = volume == 0 || object.volume.0 == volume;
                    if !wanted || (copy.removed != 0) != removed {
                        continue;
                    }
                    if all.len() == limit {
                        return Ok((all, true));
                    }
                    all.push(info(*object, &[*copy]));
                }
            }
        });
        let (objects, more) = listed.await?;
        let objects = List::from_iter_cut(objects);
        Ok(ListObjectsReply { objects, more })
    }

    /// Marks objects as removed at `now`. Upkeep removes their bytes after the retention.
    pub(crate) async fn remove_softly(
        &self,
        objects: List<ObjectId, { cellar_wire::osd::NAMED_MAX }>,
        now: u64,
    ) -> Result<u32, Refusal> {
        on_catalogue(self, move |catalogue| catalogue.mark(&objects, now.max(1))).await
    }

    /// Brings removed objects back.
    pub(crate) async fn undelete(
        &self,
        objects: List<ObjectId, { cellar_wire::osd::NAMED_MAX }>,
    ) -> Result<u32, Refusal> {
        on_catalogue(self, move |catalogue| catalogue.mark(&objects, 0)).await
    }

    /// Removes objects finally. Returns their number.
    pub(crate) async fn remove_hard(&self, objects: &[ObjectId]) -> Result<u32, Refusal> {
        let mut removed = 0;
        for object in objects.iter().copied() {
            let copies = on_catalogue(self, move |catalogue| catalogue.of(object)).await?;
            for copy in &copies {
                self.remove_copy(object, copy).await?;
            }
            removed += u32::from(!copies.is_empty());
        }
        Ok(removed)
    }

    /// Removes versions that are not needed. Returns the freed bytes.
    pub(crate) async fn prune(&self, needed: &[Needed]) -> Result<u64, Refusal> {
        let mut freed = 0;
        for needed in needed {
            let object = needed.object;
            let copies = on_catalogue(self, move |catalogue| catalogue.of(object)).await?;
            let stays =
                |copy: &&Copy| copy.version >= needed.below || needed.keep.contains(&copy.version);
            for copy in copies.iter().filter(|copy| !stays(copy)) {
                self.remove_copy(object, copy).await?;
                freed += copy.receipt.length;
            }
        }
        Ok(freed)
    }

    /// Removes a copy: marked first, then from the archive, then from the catalogue. After a crash
    /// in between it is marked, and upkeep removes it.
    async fn remove_copy(&self, object: ObjectId, copy: &Copy) -> Result<(), Refusal> {
        let version = copy.version;
        if copy.removed == 0 {
            // Versions of a copy's object are removed together: it has one.
            on_catalogue(self, move |catalogue| catalogue.mark(&[object], 1)).await?;
        }
        let removed = self.remove(object, version).await;
        self.note(&removed);
        removed?;
        on_catalogue(self, move |catalogue| catalogue.forget(object, version)).await
    }

    /// Removes copies that were softly removed before that time. Returns their number.
    pub(crate) async fn purge(&self, before: u64) -> Result<u32, Refusal> {
        let (mut from, mut purged) = (None, 0);
        loop {
            let page = on_catalogue(self, move |catalogue| catalogue.page(from, 256)).await?;
            let Some((object, copy)) = page.last() else {
                return Ok(purged);
            };
            from = Some((*object, copy.version));
            let old = page
                .iter()
                .filter(|(_, copy)| (1..before).contains(&copy.removed));
            for (object, copy) in old {
                self.remove_copy(*object, copy).await?;
                purged += 1;
            }
        }
    }
}

impl Server {
    /// Ends the soft deletes of an archive that are older than the retention.
    pub(crate) async fn purge_archive(&self, device: &Arc<Device>, before: u64) {
        if let Some(archive) = device.archive() {
            match archive.purge(before).await {
                Ok(purged) => crate::statistics::add(&self.statistics.purged, purged.into()),
                Err(refusal) => {
                    tracing::warn!(osd = device.id, ?refusal, "cannot end soft deletes");
                }
            }
        }
    }
}

fn info(object: ObjectId, copies: &[Copy]) -> ObjectInfo {
    let versions = copies.iter().map(|copy| VersionInfo {
        version: copy.version,
        length: copy.receipt.length,
        written: copy.created,
    });
    ObjectInfo {
        object,
        created: copies.first().map_or(0, |copy| copy.created),
        accessed: 0,
        removed: copies.first().map_or(0, |copy| copy.removed),
        allocated: copies.iter().map(|copy| copy.receipt.length).sum(),
        versions: List::from_iter_cut(versions),
    }
}
