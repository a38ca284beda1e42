//! Volume transactions: who works on a volume, and what clients may do meanwhile.
//!
//! One transaction for each volume; each call on it counts as use, and one that nobody used for ten
//! minutes is ended by the server. A volume that is marked to be destroyed when its transaction
//! ends without the mark being taken back was never finished: it is deleted.

use std::collections::HashMap;
use std::sync::Arc;

use cellar_rpc::IncomingCall;
use cellar_volume::{VolumeInfo, VolumeKind};
use cellar_wire::afsvol::{
    EndTrans, EndTransReply, GetFlags, GetFlagsReply, GetName, GetNameReply, GetStatus,
    GetStatusReply, IT_BUSY, IT_CREATE, IT_OFFLINE, IT_READ_ONLY, Monitor, MonitorReply,
    TT_DELETED, TransCreate, TransCreateReply, TransDebugInfo, VolserStatus,
};
use cellar_wire::ids::{AfsTime, PartitionId, VolumeId};
use cellar_wire::{AbortCode, AfsString, List, WordString};
use parking_lot::Mutex;
use tracing::{info, warn};

use super::{Answered, code, on_disk, superuser};
use crate::audit;
use crate::limits::{VOLUME_TRANSACTION_IDLE, VOLUME_TRANSACTIONS};
use crate::server::Server;
use crate::volumes::{Attached, Special};

/// A volume transaction.
#[derive(Clone, Debug)]
pub(crate) struct Transaction {
    pub(super) volume: VolumeId,
    pub(super) partition: PartitionId,
    attach_flags: i32,
    pub(super) volume_flags: u8,
    deleted: bool,
    began: u32,
    used: u32,
    last_procedure: &'static str,
}

/// All volume transactions.
#[derive(Default)]
pub(crate) struct Transactions(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    last: i32,
    open: HashMap<i32, Transaction>,
}

impl Transactions {
    /// Transactions open.
    pub(crate) fn count(&self) -> usize {
        self.0.lock().open.len()
    }

    /// Opens one. There may be one for each volume.
    pub(super) fn begin(
        &self,
        volume: VolumeId,
        partition: PartitionId,
        attach_flags: i32,
        now: u32,
        procedure: &'static str,
    ) -> Result<i32, AbortCode> {
        let mut inner = self.0.lock();
        if inner
            .open
            .values()
            .any(|open| open.volume == volume && !open.deleted)
        {
            return Err(AbortCode::VOLSERVOLBUSY);
        }
        if inner.open.len() >= VOLUME_TRANSACTIONS {
            return Err(AbortCode::VOLSERNO_MEMORY);
        }
        // Numbers are above 0, and those of long ago may come again.
        let number = loop {
            inner.last = inner.last.checked_add(1).unwrap_or(1);
            if !inner.open.contains_key(&inner.last) {
                break inner.last;
            }
        };
        let transaction = Transaction {
            volume,
            partition,
            attach_flags,
            volume_flags: 0,
            deleted: false,
            began: now,
            used: now,
            last_procedure: procedure,
        };
        inner.open.insert(number, transaction);
        Ok(number)
    }

    /// A transaction that a call uses. An unknown number, or one whose volume was deleted: ENOENT.
    pub(super) fn used(
        &self,
        number: i32,
        now: u32,
        procedure: &'static str,
    ) -> Result<Transaction, AbortCode> {
        let mut inner = self.0.lock();
        let open = inner.open.get_mut(&number).filter(|open| !open.deleted);
        let open = open.ok_or(AbortCode::ENOENT)?;
        open.used = now;
        open.last_procedure = procedure;
        audit::about("volume", open.volume);
        Ok(open.clone())
    }

    pub(super) fn set_flags(&self, number: i32, flags: u8) {
        if let Some(open) = self.0.lock().open.get_mut(&number) {
            open.volume_flags = flags;
        }
    }

    pub(super) fn set_deleted(&self, number: i32) {
        if let Some(open) = self.0.lock().open.get_mut(&number) {
            open.deleted = true;
        }
    }

    /// Whether a volume has a transaction.
    pub(super) fn is_busy(&self, volume: VolumeId) -> bool {
        self.0
            .lock()
            .open
            .values()
            .any(|open| open.volume == volume && !open.deleted)
    }

    fn end(&self, number: i32) -> Option<Transaction> {
        self.0.lock().open.remove(&number)
    }

    fn idle(&self, now: u32) -> Vec<i32> {
        let longest = VOLUME_TRANSACTION_IDLE.as_secs();
        let inner = self.0.lock();
        let idle = |open: &Transaction| u64::from(now.saturating_sub(open.used)) >= longest;
        inner
            .open
            .iter()
            .filter(|(_, open)| idle(open))
            .map(|(number, _)| *number)
            .collect()
    }

    fn all(&self) -> Vec<(i32, Transaction)> {
        let inner = self.0.lock();
        let mut all: Vec<_> = inner
            .open
            .iter()
            .map(|(number, t)| (*number, t.clone()))
            .collect();
        all.sort_by_key(|(number, _)| *number);
        all
    }
}

impl Server {
    /// The volume of a transaction.
    pub(super) fn volume_in(&self, transaction: &Transaction) -> Result<Attached, AbortCode> {
        match self.volumes.find(transaction.volume).map_err(code)? {
            Some((_, attached)) => Ok(attached),
            None => Err(AbortCode::VNOVOL),
        }
    }

    /// Ends a transaction: clients see the volume as its header says. One that is still marked to
    /// be destroyed is.
    pub(super) fn finish_transaction(&self, number: i32) -> Result<(), AbortCode> {
        let Some(transaction) = self.transactions.end(number) else {
            return Err(AbortCode::ENOENT);
        };
        let volume = transaction.volume;
        if !transaction.deleted
            && let Some((_, attached)) = self.volumes.find(volume).map_err(code)?
            && attached.volume.info().destroy_me
        {
            info!(%volume, "unfinished volume removed");
            let deleted = attached.partition.delete_volume(volume).map_err(code)?;
            self.volumes.forget(volume);
            deleted.wait().map_err(code)?;
        }
        self.volumes.set_special(volume, None);
        Ok(())
    }

    /// Ends transactions that nobody uses any more.
    pub(crate) fn expire_transactions(self: &Arc<Self>, now: u32) {
        for number in self.transactions.idle(now) {
            let server = self.clone();
            tokio::spawn(cellar_rpc::blocking(move || {
                warn!(transaction = number, "volume transaction timed out");
                if let Err(code) = server.finish_transaction(number) {
                    warn!(transaction = number, %code, "volume transaction not ended");
                }
            }));
        }
    }
}

/// What clients may do while a volume is attached with these flags.
fn special_of(flags: i32) -> Option<Special> {
    [
        (IT_CREATE, Special::Secret),
        (IT_BUSY, Special::Busy),
        (IT_READ_ONLY, Special::ReadOnly),
        (IT_OFFLINE, Special::Offline),
    ]
    .into_iter()
    .find(|(flag, _)| flags & flag != 0)
    .map(|(_, special)| special)
}

pub(super) async fn trans_create(server: &Arc<Server>, call: &mut IncomingCall) -> Answered {
    let TransCreate {
        volume,
        partition,
        flags,
    } = call.arguments().await?;
    superuser(server, call)?;
    audit::about("volume", volume);
    audit::about("partition", partition);
    let special = special_of(flags).ok_or(AbortCode::EINVAL)?;
    let partition = PartitionId::new(partition).ok_or(AbortCode::VNOVOL)?;
    let (server, now) = (server.clone(), server.now_secs());
    let number = on_disk(move || {
        let place = server.volumes.find(volume).map_err(code)?;
        if place.is_none_or(|(place, _)| place != partition) {
            return Err(AbortCode::VNOVOL);
        }
        let number = server
            .transactions
            .begin(volume, partition, flags, now, "TransCreate")?;
        server.volumes.set_special(volume, Some(special));
        Ok(number)
    })
    .await?;
    call.reply(&TransCreateReply { trans: number });
    Ok(())
}

pub(super) async fn end_trans(server: &Arc<Server>, call: &mut IncomingCall) -> Answered {
    let EndTrans { trans } = call.arguments().await?;
    superuser(server, call)?;
    let server = server.clone();
    on_disk(move || server.finish_transaction(trans)).await?;
    call.reply(&EndTransReply { rcode: 0 });
    Ok(())
}

pub(super) async fn get_flags(server: &Arc<Server>, call: &mut IncomingCall) -> Answered {
    let GetFlags { trans } = call.arguments().await?;
    let transaction = server
        .transactions
        .used(trans, server.now_secs(), "GetFlags")?;
    call.reply(&GetFlagsReply {
        flags: transaction.volume_flags.into(),
    });
    Ok(())
}

pub(super) async fn get_name(server: &Arc<Server>, call: &mut IncomingCall) -> Answered {
    let GetName { trans } = call.arguments().await?;
    let info = info_in(server, trans, "GetName").await?;
    let name = AfsString::new(info.name.into_bytes()).map_err(|_| AbortCode::E2BIG)?;
    call.reply(&GetNameReply { name });
    Ok(())
}

pub(super) async fn get_status(server: &Arc<Server>, call: &mut IncomingCall) -> Answered {
    let GetStatus { trans } = call.arguments().await?;
    let info = info_in(server, trans, "GetStatus").await?;
    call.reply(&GetStatusReply {
        status: status(&info),
    });
    Ok(())
}

async fn info_in(
    server: &Arc<Server>,
    number: i32,
    procedure: &'static str,
) -> Result<VolumeInfo, AbortCode> {
    let transaction = server
        .transactions
        .used(number, server.now_secs(), procedure)?;
    let server = server.clone();
    on_disk(move || Ok(server.volume_in(&transaction)?.volume.info())).await
}

fn status(info: &VolumeInfo) -> VolserStatus {
    VolserStatus {
        volume: info.id,
        // Uniquifiers are not drawn from one counter here; nobody continues this one.
        next_unique: 0,
        volume_type: kind_number(info.kind),
        parent: info.parent,
        clone: info.clone,
        backup: info.backup,
        restored_from: info.restored_from,
        max_quota: info.max_quota as i32,
        min_quota: info.min_quota as i32,
        owner: info.owner.0,
        creation_date: info.created,
        access_date: info.accessed,
        update_date: info.updated,
        expiration_date: info.expires,
        backup_date: info.backed_up,
        copy_date: info.copied,
    }
}

/// The number of a type of volume on the wire.
pub(super) fn kind_number(kind: VolumeKind) -> i32 {
    kind as i32
}

pub(super) async fn monitor(server: &Arc<Server>, call: &mut IncomingCall) -> Answered {
    let Monitor {} = call.arguments().await?;
    let entry = |(number, open): (i32, Transaction)| TransDebugInfo {
        trans: number,
        time: AfsTime(open.used),
        creation_time: AfsTime(open.began),
        volume: open.volume,
        partition: open.partition.number(),
        attach_flags: open.attach_flags as i16,
        volume_flags: open.volume_flags,
        trans_flags: if open.deleted { TT_DELETED as u8 } else { 0 },
        last_procedure: WordString::new(open.last_procedure.as_bytes()).unwrap_or_default(),
        ..TransDebugInfo::default()
    };
    let entries = server.transactions.all().into_iter().map(entry);
    call.reply(&MonitorReply {
        entries: List::from_iter_cut(entries),
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARTITION: PartitionId = PartitionId::MAX;

    #[test]
    fn one_transaction_for_each_volume() {
        let transactions = Transactions::default();
        let begin = |volume| transactions.begin(VolumeId(volume), PARTITION, 1, 0, "x");
        let first = begin(1).unwrap();
        assert!(first > 0);
        assert_eq!(begin(1), Err(AbortCode::VOLSERVOLBUSY));
        assert_ne!(begin(2).unwrap(), first);
        assert!(transactions.used(first, 5, "y").is_ok());
        transactions.set_deleted(first);
        assert_eq!(
            transactions.used(first, 5, "y").unwrap_err(),
            AbortCode::ENOENT
        );
        assert!(transactions.end(first).is_some());
        assert!(begin(1).is_ok());
    }

    #[test]
    fn idle_transactions_are_found() {
        let transactions = Transactions::default();
        let number = transactions
            .begin(VolumeId(1), PARTITION, 1, 0, "x")
            .unwrap();
        transactions.used(number, 100, "y").unwrap();
        assert!(transactions.idle(699).is_empty());
        assert_eq!(transactions.idle(700), [number]);
    }

    #[test]
    fn attachment_by_the_strongest_flag() {
        assert_eq!(special_of(IT_OFFLINE | IT_CREATE), Some(Special::Secret));
        assert_eq!(special_of(IT_BUSY | IT_OFFLINE), Some(Special::Busy));
        assert_eq!(
            special_of(IT_READ_ONLY | IT_OFFLINE),
            Some(Special::ReadOnly)
        );
        assert_eq!(special_of(IT_OFFLINE), Some(Special::Offline));
        assert_eq!(special_of(0), None);
    }
}
