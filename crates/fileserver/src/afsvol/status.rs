//! TransCreate (108), EndTrans (104), GetFlags (107), GetName (112), GetStatus (113), Monitor
//! (118).

use std::sync::Arc;

use cellar_rpc::IncomingCall;
use cellar_volume::{VolumeInfo, VolumeKind};
use cellar_wire::afsvol::{
    EndTrans, EndTransReply, GetFlags, GetFlagsReply, GetName, GetNameReply, GetStatus,
    GetStatusReply, Monitor, MonitorReply, TT_DELETED, TransCreate, TransCreateReply,
    TransDebugInfo, VolserStatus,
};
use cellar_wire::ids::{AfsTime, PartitionId};
use cellar_wire::serve::Handle;
use cellar_wire::{AbortCode, AfsString, List, WordString};

use super::VolumeService;
use super::transaction::{Beginning, InUse, Transaction, special_of};
use super::{in_memory, on_disk, superuser};
use crate::audit;
use crate::services::VolumeServices;

impl Handle<TransCreate, IncomingCall> for VolumeService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: TransCreate,
    ) -> Result<TransCreateReply, AbortCode> {
        let services = &self.services;
        let TransCreate {
            volume,
            partition,
            flags,
        } = arguments;
        superuser(&services.sessions, call)?;
        audit::add_detail("volume", volume);
        audit::add_detail("partition", partition);
        let special = special_of(flags).ok_or(AbortCode::EINVAL)?;
        let partition = PartitionId::new(partition).ok_or(AbortCode::VNOVOL)?;
        let beginning = Beginning {
            volume,
            partition,
            attach_flags: flags,
            now: services.now_secs(),
            procedure: "TransCreate",
        };
        let trans = {
            let services = services.clone();
            on_disk(move || {
                let begun = InUse::begin(&services, beginning)?;
                match begun.attach(special) {
                    Ok(()) => Ok(begun.number()),
                    Err(code) => {
                        begun.end();
                        Err(code)
                    }
                }
            })
            .await?
        };
        audit::add_detail("transaction", trans);
        Ok(TransCreateReply { trans })
    }
}

impl Handle<EndTrans, IncomingCall> for VolumeService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: EndTrans,
    ) -> Result<EndTransReply, AbortCode> {
        let services = &self.services;
        let EndTrans { trans } = arguments;
        superuser(&services.sessions, call)?;
        audit::add_detail("transaction", trans);
        if let Ok(transaction) = services.transactions.for_reading(trans) {
            audit::add_detail("volume", transaction.volume);
        }
        services.end_transaction(trans)?;
        Ok(EndTransReply { rcode: 0 })
    }
}

/// A transaction for a call that only reads. The call counts as use of it if the caller is a
/// superuser.
fn open_for_reading(
    services: &Arc<VolumeServices>,
    call: &IncomingCall,
    number: i32,
    procedure: &'static str,
) -> Result<(Transaction, Option<InUse>), AbortCode> {
    let transaction = services.transactions.for_reading(number)?;
    let superuser = services.sessions.identify(call.caller()).is_superuser();
    let used = superuser.then(|| InUse::enter(services, number, procedure));
    Ok((transaction, used.transpose()?))
}

impl Handle<GetFlags, IncomingCall> for VolumeService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: GetFlags,
    ) -> Result<GetFlagsReply, AbortCode> {
        let services = &self.services;
        let GetFlags { trans } = arguments;
        let (transaction, _used) = open_for_reading(services, call, trans, "GetFlags")?;
        Ok(GetFlagsReply {
            flags: transaction.volume_flags.into(),
        })
    }
}

impl Handle<GetName, IncomingCall> for VolumeService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: GetName,
    ) -> Result<GetNameReply, AbortCode> {
        let services = &self.services;
        let GetName { trans } = arguments;
        let info = info_in(services, call, trans, "GetName").await?;
        let name = AfsString::new(info.name.into_bytes()).map_err(|_| AbortCode::E2BIG)?;
        Ok(GetNameReply { name })
    }
}

impl Handle<GetStatus, IncomingCall> for VolumeService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: GetStatus,
    ) -> Result<GetStatusReply, AbortCode> {
        let services = &self.services;
        let GetStatus { trans } = arguments;
        let info = info_in(services, call, trans, "GetStatus").await?;
        Ok(GetStatusReply {
            status: status(&info),
        })
    }
}

async fn info_in(
    services: &Arc<VolumeServices>,
    call: &IncomingCall,
    number: i32,
    procedure: &'static str,
) -> Result<VolumeInfo, AbortCode> {
    let (transaction, _used) = open_for_reading(services, call, number, procedure)?;
    let services = services.clone();
    let found = in_memory(move || {
        let Transaction {
            partition, volume, ..
        } = transaction;
        let found = services.volumes.find_on(partition, volume)?;
        Ok(found.map(|attached| attached.volume.info()))
    });
    found.await?.ok_or(AbortCode::ENOENT)
}

fn status(info: &VolumeInfo) -> VolserStatus {
    VolserStatus {
        volume: info.id,
        // Only the volume itself uses this counter.
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

/// The type of volume of a number on the wire.
pub(super) fn kind_of(number: i32) -> Option<VolumeKind> {
    [
        VolumeKind::ReadWrite,
        VolumeKind::ReadOnly,
        VolumeKind::Backup,
    ]
    .into_iter()
    .find(|&kind| kind_number(kind) == number)
}

impl Handle<Monitor, IncomingCall> for VolumeService {
    async fn handle(&self, _: &IncomingCall, _: Monitor) -> Result<MonitorReply, AbortCode> {
        let services = &self.services;

        let entries = services.transactions.all();
        let entries = entries
            .into_iter()
            .map(|(number, open)| shown(number, &open));
        Ok(MonitorReply {
            entries: List::from_iter_cut(entries),
        })
    }
}

fn shown(number: i32, open: &Transaction) -> TransDebugInfo {
    let mut shown = TransDebugInfo {
        trans: number,
        time: AfsTime(open.used),
        creation_time: AfsTime(open.began),
        return_code: 0,
        volume: open.volume,
        partition: open.partition.number(),
        attach_flags: open.attach_flags as i16,
        volume_flags: open.volume_flags,
        trans_flags: if open.ended { TT_DELETED as u8 } else { 0 },
        last_procedure: WordString::new(open.last_procedure.as_bytes()).unwrap_or_default(),
        ..TransDebugInfo::default()
    };
    if let Some(progress) = &open.progress {
        shown.call_valid = 1;
        let last;
        (shown.read_next, shown.transmit_next, last) = progress.shown();
        (shown.last_receive_time, shown.last_send_time) = (last, last);
    }
    shown
}
