//! What is done to the objects of a device: sums, undelete, purge, scrub.

use cellar_rpc::CallError;
use cellar_wire::object::ObjectId;
use cellar_wire::osd::{
    Checksum, Examine, NAMED_MAX, Purge, SUM_CRC32C, SUM_MD5, SUM_SHA256, Scrub, ScrubStatus,
    Undelete,
};
use cellar_wire::{AbortCode, List};
use serde::Serialize;

use super::Osds;
use super::contents::{object_name, parse_object};
use crate::error::{Error, Result};

/// The sums of a version of an object, as its device reads it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Sums {
    /// `volume.vnode.uniquifier.serial`
    pub object: String,
    /// Which version.
    pub version: u64,
    /// Bytes.
    pub length: u64,
    /// CRC-32C, in hexadecimal as the others.
    pub crc32c: String,
    /// SHA-256.
    pub sha256: String,
    /// MD5.
    pub md5: String,
}

impl Sums {
    /// A line each.
    pub fn text(&self) -> String {
        format!(
            "Object {}, version {}: {} bytes\n    CRC-32C   {}\n    MD5       {}\n    SHA-256   {}\n",
            self.object, self.version, self.length, self.crc32c, self.md5, self.sha256
        )
    }
}

/// How far the scrub of a device is, or what the last one found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ScrubView {
    /// It runs now.
    pub running: bool,
    /// Bytes that were verified.
    pub bytes: u64,
    /// Bytes that there are.
    pub total: u64,
    /// Objects that are damaged, also those that readers met.
    pub damaged: Vec<String>,
}

impl Osds<'_> {
    /// The sums of an object, of its newest version if none is named. The device reads it for that.
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

    /// Brings back objects that were removed softly. Answers how many of them could be.
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
            restored += reply.map_err(|cause| Error::refused(what, cause))?.restored;
        }
        Ok(restored)
    }

    /// Ends soft deletes for good: of objects that were removed before that time, in seconds since 1970.
    /// Answers how many they were.
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
        Ok(reply.map_err(|cause| Error::refused(what, cause))?.purged)
    }

    /// Has a device verify all that it holds, in the background, at up to so many KiB a second (0: as fast
    /// as it can). One that runs goes on as it is.
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
        reply.map_err(|cause| Error::refused(what, cause))?;
        Ok(())
    }

    /// How far the scrub of a device is, or what the last one found.
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
        let reply = reply.map_err(|cause| Error::refused(what, cause))?;
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
