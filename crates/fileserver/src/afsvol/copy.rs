//! A read-write clone, as `vos clone -readwrite` makes it. Two volumes that change independently
//! cannot share the vnodes of a group. So this clone is a copy, made locally as a delta from
//! nothing. For files in objects it names the same objects, until it stores into them.

use std::sync::Arc;

use cellar_fileobjects::Lender;
use cellar_volume::{Partition, Since, VolumeKind, VolumeSpec};
use cellar_wire::AbortCode;
use cellar_wire::afsvol::{READWRITE, RestoreCookie, VolumeName};
use cellar_wire::ids::{AfsTime, VolumeId};

use super::code;
use super::delta_in::DeltaSink;
use super::delta_out::{Base, DeltaSource, plan};
use super::dump::freeze;
use super::stream::{Sink, pass};
use super::transaction::InUse;
use crate::services::VolumeServices;

/// Copies the volume of a transaction. Until SetFlags(0), the copy is out of service and marked to
/// be destroyed.
pub(super) fn copy(
    services: &Arc<VolumeServices>,
    source: &InUse,
    partition: &Partition,
    new: VolumeId,
    name: &str,
) -> Result<(), AbortCode> {
    let now: AfsTime = services.now();
    let frozen = freeze(source)?;
    let info = frozen.info();
    let spec = VolumeSpec {
        kind: VolumeKind::ReadWrite,
        parent: info.parent,
        root: false,
        in_service: false,
        destroy_me: true,
        ..VolumeSpec::new(new, name, info.owner, now)
    };
    let made = partition.create_volume(&spec);
    made.and_then(|made| made.wait()).map_err(code)?;
    let cookie = RestoreCookie {
        name: VolumeName::new(name.as_bytes()).unwrap_or_default(),
        volume_type: READWRITE,
        clone: info.clone,
        parent: info.parent,
    };
    let copied = (|| {
        let (mut head, _) = plan(&frozen, Base::Nothing)?.ok_or(AbortCode::VOLSERFAILEDOP)?;
        head.creation_date = now;
        let mut from = DeltaSource::new(
            &frozen,
            Since::Everything,
            Some(Lender::new(&services.objects)),
        )?;
        let mut to = DeltaSink::new(services, partition, new, cookie, head)?.locally();
        match pass(&mut from, &mut to, usize::MAX) {
            Ok(_) => to.finish(),
            Err(code) => {
                to.give_up();
                Err(code)
            }
        }
    })();
    if copied.is_err() {
        let removed = partition.delete_volume(new);
        removed.and_then(|removed| removed.wait()).map_err(code)?;
    }
    copied
}
