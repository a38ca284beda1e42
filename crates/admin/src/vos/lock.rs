//! Locks of VLDB entries, and their holders.
//!
//! A lock is a date and an operation in the entry. It has no owner and does not expire. A Cellar
//! location server also stores the holder, the holder's address and the purpose. Other servers tell
//! only the operation.

use std::net::{IpAddr, Ipv4Addr};

use cellar_wire::AbortCode;
use cellar_wire::ids::{AfsTime, VolumeId};
use cellar_wire::vl::{self, VLOP_BACKUP, VLOP_DELETE, VLOP_DUMP, VLOP_MOVE, VLOP_RELEASE};
use serde::Serialize;

use super::Volumes;
use crate::date::ctime;
use crate::error::{Error, Result};

/// The known facts about a lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LockInfo {
    /// `VLOP_*`; in JSON its name.
    #[serde(serialize_with = "operation")]
    pub operation: u32,
    /// Time of locking; none if the server does not say.
    #[serde(serialize_with = "when")]
    pub since: Option<AfsTime>,
    /// The holder, as the server knows it; empty if it does not say.
    pub who: String,
    /// The address of the holder.
    pub from: Option<IpAddr>,
    /// The purpose, as the program gave it.
    pub note: String,
}

fn operation<S: serde::Serializer>(operation: &u32, s: S) -> std::result::Result<S::Ok, S::Error> {
    s.serialize_str(lock_operation(*operation))
}

fn when<S: serde::Serializer>(
    since: &Option<AfsTime>,
    s: S,
) -> std::result::Result<S::Ok, S::Error> {
    match since {
        Some(since) => s.serialize_u32(since.0),
        None => s.serialize_none(),
    }
}

/// The name of the operation that an entry is locked for, as `vos` prints it.
pub fn lock_operation(flags: u32) -> &'static str {
    match flags & vl::VLOP_ALLOPERS {
        VLOP_MOVE => "move",
        VLOP_RELEASE => "release",
        VLOP_BACKUP => "backup",
        VLOP_DELETE => "delete/misc",
        VLOP_DUMP => "dump/restore",
        _ => "unknown",
    }
}

impl LockInfo {
    /// The lines about the lock that follow those of `vos`; empty if no more is known.
    pub fn lines(&self) -> String {
        match self.sentence() {
            text if text.is_empty() => text,
            text => format!("    Locked {text}\n"),
        }
    }

    /// `by WHO from WHERE since WHEN: PURPOSE`, as far as it is known.
    pub fn sentence(&self) -> String {
        let mut parts = Vec::new();
        if !self.who.is_empty() {
            parts.push(format!("by {}", self.who));
        }
        if let Some(from) = self.from {
            parts.push(format!("from {from}"));
        }
        if let Some(since) = self.since {
            parts.push(format!("since {}", ctime(since)));
        }
        let mut text = parts.join(" ");
        if !self.note.is_empty() {
            text.push_str(": ");
            text.push_str(&self.note);
        }
        text
    }
}

impl Volumes<'_> {
    /// Locks an entry for an operation (`VLOP_*`).
    ///
    /// # Errors
    /// [`Error::Locked`], with the known facts about the lock; or the caller has no permission.
    pub async fn lock(&self, volume: VolumeId, operation: u32) -> Result<()> {
        self.lock_for(volume, operation, lock_operation(operation))
            .await
    }

    /// [`Volumes::lock`] with a text about the purpose.
    pub(super) async fn lock_for(&self, volume: VolumeId, operation: u32, why: &str) -> Result<()> {
        match self.try_lock(volume, operation, why).await {
            // OpenAFS's vos leaves the mark of an unfinished release in the entry, without a lock.
            Err(error) if error.code() == Some(AbortCode::VL_RERELEASE) => {
                self.unlock(volume).await?;
                self.try_lock(volume, operation, why).await
            }
            Err(error) if error.code() == Some(AbortCode::VL_ENTRYLOCKED) => {
                let lock = self.lock_info(volume).await.ok().flatten();
                Err(Error::Locked {
                    what: format!("Could not lock VLDB entry for volume {volume}"),
                    volume,
                    operation: lock.as_ref().map_or(0, |lock| lock.operation),
                    holder: lock.map(|lock| lock.sentence()).unwrap_or_default(),
                })
            }
            other => other,
        }
    }

    async fn try_lock(&self, volume: VolumeId, operation: u32, why: &str) -> Result<()> {
        let what = format!("Could not lock VLDB entry for volume {volume}");
        let noted = vl::LockNoted {
            volid: volume,
            voltype: vl::ANYVOL,
            voloper: operation as i32,
            note: vl::LockText::try_from(note(why)).unwrap_or_default(),
        };
        match self.vl(&noted, &what).await {
            Err(error) if error.code() == Some(AbortCode::RXGEN_OPCODE) => {}
            other => return other.map(|_| ()),
        }
        let plain = vl::SetLock {
            volid: volume,
            voltype: vl::ANYVOL,
            voloper: operation as i32,
        };
        self.vl(&plain, &what).await?;
        Ok(())
    }

    /// The known facts about the lock of an entry; `None` if it is not locked.
    ///
    /// # Errors
    /// There is no such entry.
    pub async fn lock_info(&self, volume: VolumeId) -> Result<Option<LockInfo>> {
        let arguments = vl::GetLock {
            volid: volume,
            voltype: vl::ANYVOL,
        };
        match self.vl(&arguments, &volume.to_string()).await {
            Ok(reply) if reply.since.0 == 0 => Ok(None),
            Ok(reply) => Ok(Some(LockInfo {
                operation: reply.operation,
                since: Some(reply.since),
                who: reply.who.to_string(),
                from: Some(Ipv4Addr::from(reply.from))
                    .filter(|from| !from.is_unspecified())
                    .map(IpAddr::V4),
                note: reply.note.to_string(),
            })),
            Err(error) if error.code() == Some(AbortCode::RXGEN_OPCODE) => {
                let operation = self.draft(volume).await?.operation();
                Ok((operation != 0).then(|| LockInfo {
                    operation,
                    since: None,
                    who: String::new(),
                    from: None,
                    note: String::new(),
                }))
            }
            Err(error) => Err(error),
        }
    }

    /// Releases the lock of an entry, independent of its holder.
    ///
    /// # Errors
    /// There is no such entry, or the caller has no permission.
    pub async fn unlock(&self, volume: VolumeId) -> Result<()> {
        let arguments = vl::ReleaseLock {
            volid: volume,
            voltype: vl::ANYVOL,
            releasetype: super::draft::UNLOCK,
        };
        let what = format!("Could not release lock on the VLDB entry for volume {volume}");
        self.vl(&arguments, &what).await?;
        Ok(())
    }
}

impl Volumes<'_> {
    /// Passes on the outcome of work on a locked entry. After a failure the lock is released; if
    /// that fails too, the error says so.
    pub(super) async fn unlock_after<T>(
        &self,
        volume: VolumeId,
        why: &str,
        work: Result<T>,
    ) -> Result<T> {
        let Err(error) = work else {
            return work;
        };
        match self.unlock(volume).await {
            Ok(()) => Err(error),
            Err(_) => Err(Error::Partial {
                what: format!("{why} of volume {volume}"),
                cause: Box::new(error),
                left: format!("Its VLDB entry stays locked; 'vos unlock {volume}' releases it"),
            }),
        }
    }
}

/// The text stored with a lock. It allows to find out whether the program that locked still runs.
fn note(why: &str) -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = match host.trim() {
        "" => "an unnamed machine",
        host => host,
    };
    format!("{why}, process {} on {host}", std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_says_what_is_known_of_it() {
        let lock = LockInfo {
            operation: VLOP_RELEASE,
            since: Some(AfsTime(1_795_262_400)),
            who: "admin@EXAMPLE.ORG".to_owned(),
            from: Some(IpAddr::from([192, 0, 2, 7])),
            note: "release, process 17 on ws1".to_owned(),
        };
        let text = lock.lines();
        assert!(
            text.starts_with("    Locked by admin@EXAMPLE.ORG from 192.0.2.7 since "),
            "{text}"
        );
        assert!(
            text.ends_with(" 2026: release, process 17 on ws1\n"),
            "{text}"
        );
        let unknown = LockInfo {
            since: None,
            who: String::new(),
            from: None,
            note: String::new(),
            ..lock
        };
        assert_eq!(unknown.lines(), "");
        assert_eq!(lock_operation(0x1020), "release");
    }
}
