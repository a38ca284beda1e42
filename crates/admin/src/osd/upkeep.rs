//! Maintenance of a device's objects: checksums, undelete, purge, scrub.

use cellar_rpc::CallError;
use cellar_wire::object::ObjectId;
use cellar_wire::osd::{
    Checksum, Examine, NAMED_MAX, Purge, SUM_CRC32C, SUM_MD5, SUM_SHA256, Scrub, ScrubStatus,
    Undelete,
};
use cellar_wire::{AbortCode, List};
use serde::Serialize;

use super::contents::{object_name, parse_object};
use super::{Osds, refused_by_server};
use crate::error::{Error, Result};

/// Checksums of a version of an object, computed from its bytes on the device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Sums {
    /// `volume.vnode.uniquifier.serial`
    pub object: String,
    /// The version.
    pub version: u64,
    /// Length in bytes.
    pub length: u64,
    /// CRC-32C, in hexadecimal like the others.
    pub crc32c: String,
    /// SHA-256.
    pub sha256: String,
    /// MD5.
    pub md5: String,
}

impl Sums {
    /// The checksums, one per line.
    pub fn text(&self) -> String {
        format!(
            "Object {}, version {}: {} bytes\n    CRC-32C   {}\n    MD5       {}\n    SHA-256   {}\n",
            self.object, self.version, self.length, self.crc32c, self.md5, self.sha256
        )
    }
}

/// The progress of a device's scrub, or the result of the last one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ScrubView {
    /// A scrub is running.
    pub running: bool,
    /// Number of verified bytes.
    pub bytes: u64,
    /// Total number of bytes.
    pub total: u64,
    /// Damaged objects, also those that were found by reads.
    pub damaged: Vec<String>,
}

impl Osds<'_> {
    /// The checksums of an object, by default of its newest version. The device reads the object
    /// for that.
    ///
    /// # Errors
    /// It is not there, it is damaged, or as [`Osds::objects`].
    pub async fn sums(&self, name_or_id: &str, object: &str, version: Option<u64>) -> Result<Sums> {
        let (_, listed) = self.find(name_or_id).await?;
        let (id, connection) = (parse_object(object)?, self.server(&listed.entry)?);
        let capability = Self::superuser(&listed.entry);
        let failed = |cause: CallError| match cause.code().to_plain() {
            AbortCode::ENOENT => Error::Usage(format!(
                "object {object}, or that version of it, is not on device {}",
                listed.entry.id
            )),
            _ => Error::refused(format!("cannot sum object {object}"), cause),
        };
        let version = match version {
            Some(version) => version,
            None => {
                let asked = Examine {
                    capability: capability.clone(),
                    object: id,
                };
                let info = connection.call(&asked).await.map_err(failed)?.info;
                info.versions.last().map_or(0, |newest| newest.version)
            }
        };
        let asked = Checksum {
            capability,
            object: id,
            version,
            sums: SUM_CRC32C | SUM_SHA256 | SUM_MD5,
        };
        let reply = connection.call(&asked).await.map_err(failed)?;
        Ok(Sums {
            object: object_name(&id),
            version,
            length: reply.length,
            crc32c: hexadecimal(&[reply.crc32c]),
            sha256: hexadecimal(&reply.sha256),
            md5: hexadecimal(&reply.md5),
        })
    }

    /// Restores objects that were removed softly. Returns the number of restored objects.
    ///
    /// # Errors
    /// As [`Osds::objects`].
    pub async fn undelete(&self, name_or_id: &str, objects: &[String]) -> Result<u32> {
        let (_, listed) = self.find(name_or_id).await?;
        let connection = self.server(&listed.entry)?;
        let ids: Vec<ObjectId> = objects
            .iter()
            .map(|object| parse_object(object))
            .collect::<Result<_>>()?;
        let mut restored = 0;
        for some in ids.chunks(NAMED_MAX) {
            let asked = Undelete {
                capability: Self::superuser(&listed.entry),
                objects: List::from_iter_cut(some.iter().copied()),
            };
            let what = "cannot bring objects back";
            let reply = connection.call(&asked).await;
            restored += reply
                .map_err(|cause| refused_by_server(&listed.entry, what, cause))?
                .restored;
        }
        Ok(restored)
    }

    /// Removes softly deleted objects for good: those that were deleted before `before`, in seconds
    /// since 1970. Returns their number.
    ///
    /// # Errors
    /// As [`Osds::objects`].
    pub async fn purge(&self, name_or_id: &str, before: u64) -> Result<u32> {
        let (_, listed) = self.find(name_or_id).await?;
        let asked = Purge {
            capability: Self::superuser(&listed.entry),
            before,
        };
        let what = format!("cannot purge device {}", listed.entry.id);
        let reply = self.server(&listed.entry)?.call(&asked).await;
        Ok(reply
            .map_err(|cause| refused_by_server(&listed.entry, what, cause))?
            .purged)
    }

    /// Starts a scrub: the device verifies all its data in the background, at up to `rate_kib` KiB
    /// per second (0: as fast as possible). A running scrub continues unchanged.
    ///
    /// # Errors
    /// As [`Osds::objects`].
    pub async fn scrub(&self, name_or_id: &str, rate_kib: u32) -> Result<()> {
        let (_, listed) = self.find(name_or_id).await?;
        let asked = Scrub {
            capability: Self::superuser(&listed.entry),
            rate_kib,
        };
        let what = format!("cannot scrub device {}", listed.entry.id);
        let reply = self.server(&listed.entry)?.call(&asked).await;
        reply.map_err(|cause| refused_by_server(&listed.entry, what, cause))?;
        Ok(())
    }

    /// The progress of a device's scrub, or the result of the last one.
    ///
    /// # Errors
    /// As [`Osds::objects`].
    pub async fn scrub_status(&self, name_or_id: &str) -> Result<ScrubView> {
        let (_, listed) = self.find(name_or_id).await?;
        let asked = ScrubStatus {
            capability: Self::superuser(&listed.entry),
        };
        let what = format!("cannot ask device {} for its scrub", listed.entry.id);
        let reply = self.server(&listed.entry)?.call(&asked).await;
        let reply = reply.map_err(|cause| refused_by_server(&listed.entry, what, cause))?;
        Ok(ScrubView {
            running: reply.running,
            bytes: reply.bytes,
            total: reply.total,
            damaged: reply.damaged.iter().map(object_name).collect(),
        })
    }
}

fn hexadecimal(words: &[u32]) -> String {
    words.iter().map(|word| format!("{word:08x}")).collect()
}
