//! Conversion of volumes and vnodes between the store and the forms of dumps and deltas.
//!
//! A restored volume has the name, type and clone that its caller gives, and the dates, quota and
//! owner of the stream. Its id, parent and copy date stay unchanged. Its service state also stays,
//! because SetFlags sets it. So a volume that a caller abandons is not shown to clients.

use std::sync::Arc;

use bytes::Bytes;
use cellar_volume::{
    AccessList, FileType, RetiredFile, StateId, VnodeImage, VolumeInfo, VolumeKind,
};
use cellar_wire::acl::ByteOrder;
use cellar_wire::afsvol::{DELTA_VERSION, DeltaHead, RestoreCookie, VolumeName, VolumeState};
use cellar_wire::delta::{DeltaRetired, DeltaVnode};
use cellar_wire::dump::{DumpHeader, InObjects, VnodeAttributes, VnodeRecord, VolumeHeader};
use cellar_wire::ids::{AfsTime, Fid, Uniquifier, VnodeId, VolumeId};
use cellar_wire::object::Layout;
use cellar_wire::{AbortCode, AfsName, AfsString, Opaque, WordString};

use super::create::checked_name;
use super::list::file_count;
use super::status::kind_of;

/// The message in OpenAFS's dumps of a volume that is on line, because a dump takes the volume off
/// line.
const DUMP_MESSAGE: &[u8] = b"A volume utility is running.";

/// Numbers in a dump have 32 bits. Larger ones become the largest value.
fn word(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

fn text<const N: usize>(text: &[u8]) -> WordString<N> {
    WordString::new(text).unwrap_or_default()
}

/// The head of a dump of changes since `from`.
pub(super) fn dump_header(info: &VolumeInfo, from: AfsTime) -> DumpHeader {
    let to = match info.kind {
        VolumeKind::ReadWrite => info.updated,
        VolumeKind::Backup if info.backed_up.0 != 0 => info.backed_up,
        VolumeKind::ReadOnly | VolumeKind::Backup => info.created,
    };
    DumpHeader {
        volume: info.id,
        name: text(info.name.as_bytes()),
        dates: vec![(from, to)],
    }
}

/// The head of a volume in a dump.
pub(super) fn volume_header(info: &VolumeInfo, uniquifier: u32) -> VolumeHeader {
    VolumeHeader {
        volume: info.id,
        version: 1,
        name: text(info.name.as_bytes()),
        in_service: info.in_service,
        blessed: info.blessed,
        uniquifier,
        volume_type: info.kind as u8,
        parent: info.parent,
        clone: info.clone,
        max_quota: info.max_quota,
        min_quota: info.min_quota,
        disk_used: word(info.blocks_used),
        file_count: word(file_count(info)),
        account: info.account,
        owner: info.owner.0 as u32,
        creation_date: info.created,
        access_date: info.accessed,
        update_date: info.updated,
        expiration_date: info.expires,
        backup_date: info.backed_up,
        offline_message: text(&info.offline_message),
        message_of_the_day: WordString::default(),
        week_use: info.week_use,
        day_use_date: info.day_use_date,
        day_use: info.day_use,
        policy: 0,
    }
}

/// A vnode's record, without attributes if it did not change.
pub(super) fn record(
    vnode: VnodeId,
    uniquifier: Uniquifier,
    image: Option<&VnodeImage>,
) -> VnodeRecord {
    let attributes = image.map(|image| VnodeAttributes {
        file_type: image.kind as u8,
        link_count: u16::try_from(image.link_count).unwrap_or(u16::MAX),
        data_version: image.data_version as u32,
        mod_time: image.client_time,
        author: image.author,
        owner: image.owner,
        group: image.group,
        mode: image.mode,
        parent: parent(image),
        server_mod_time: image.server_time,
        access_list: image.acl.as_ref().map(|list| Box::new(list.to_bytes())),
        policy: 0,
        data_length: Some(image.length),
        objects: None,
    });
    VnodeRecord {
        vnode,
        uniquifier,
        attributes,
    }
}

/// Replaces the contents in the record of a file by its layout.
pub(super) fn with_objects(
    attributes: &mut VnodeAttributes,
    cell: &AfsString<256>,
    layout: &Layout,
) {
    attributes.objects = Some(Box::new(InObjects {
        cell: cell.clone(),
        length: attributes.data_length.take().unwrap_or_default(),
        layout: layout.clone(),
    }));
}

/// The root has no parent.
fn parent(image: &VnodeImage) -> VnodeId {
    if image.vnode == VnodeId::ROOT {
        VnodeId(0)
    } else {
        image.parent
    }
}

fn file_type(number: u32) -> Option<FileType> {
    [FileType::File, FileType::Directory, FileType::Symlink]
        .into_iter()
        .find(|&kind| kind as u32 == number)
}

fn access_list(kind: FileType, bytes: Option<&[u8]>) -> Result<Option<Arc<AccessList>>, AbortCode> {
    let unsound = AbortCode::VOLSERREAD_DUMPERROR;
    match (kind, bytes) {
        (FileType::Directory, Some(bytes)) => {
            let bytes = bytes.try_into().map_err(|_| unsound)?;
            let list = AccessList::from_bytes(bytes, ByteOrder::Network);
            Ok(Some(Arc::new(list.map_err(|_| unsound)?)))
        }
        (FileType::Directory, None) => Err(unsound),
        _ => Ok(None),
    }
}

/// A vnode of a dump.
pub(super) fn image(
    vnode: VnodeId,
    uniquifier: Uniquifier,
    attributes: &VnodeAttributes,
) -> Result<VnodeImage, AbortCode> {
    let kind = file_type(attributes.file_type.into()).ok_or(AbortCode::VOLSERREAD_DUMPERROR)?;
    let list = attributes.access_list.as_ref();
    Ok(VnodeImage {
        vnode,
        uniquifier,
        kind,
        mode: attributes.mode & 0o7777,
        link_count: attributes.link_count.into(),
        data_version: attributes.data_version.into(),
        client_time: attributes.mod_time,
        server_time: attributes.server_mod_time,
        author: attributes.author,
        owner: attributes.owner,
        group: attributes.group,
        parent: attributes.parent,
        length: match &attributes.objects {
            Some(objects) => objects.length,
            None => attributes.data_length.unwrap_or(0),
        },
        acl: access_list(kind, list.map(|list| &list[..]))?,
        layout: attributes
            .objects
            .as_ref()
            .map(|objects| Arc::new(objects.layout.clone())),
        copies: None,
        wiped: None,
        policy: attributes.policy,
    })
}

/// A vnode for a delta. The first `kept` bytes of its contents in the base may stay.
pub(super) fn delta_vnode(image: &VnodeImage, kept: u64) -> DeltaVnode {
    let list = image.acl.as_ref().map(|list| list.to_bytes().to_vec());
    DeltaVnode {
        vnode: image.vnode,
        uniquifier: image.uniquifier,
        file_type: image.kind as u32,
        mode: image.mode.into(),
        link_count: image.link_count,
        data_version: image.data_version,
        mod_time: image.client_time,
        server_mod_time: image.server_time,
        author: image.author,
        owner: image.owner,
        group: image.group,
        parent: parent(image),
        access_list: Opaque::new(list.unwrap_or_default()).unwrap_or_default(),
        length: image.length,
        kept,
    }
}

/// A vnode of a delta.
pub(super) fn image_of_delta(vnode: &DeltaVnode) -> Result<VnodeImage, AbortCode> {
    let unsound = AbortCode::VOLSERREAD_DUMPERROR;
    let kind = file_type(vnode.file_type).ok_or(unsound)?;
    let mode = u16::try_from(vnode.mode)
        .ok()
        .filter(|mode| mode >> 12 == 0);
    Ok(VnodeImage {
        vnode: vnode.vnode,
        uniquifier: vnode.uniquifier,
        kind,
        mode: mode.ok_or(unsound)?,
        link_count: vnode.link_count,
        data_version: vnode.data_version,
        client_time: vnode.mod_time,
        server_time: vnode.server_mod_time,
        author: vnode.author,
        owner: vnode.owner,
        group: vnode.group,
        parent: vnode.parent,
        length: vnode.length,
        acl: access_list(kind, Some(vnode.access_list.as_bytes()))?,
        layout: None,
        copies: None,
        wiped: None,
        policy: 0,
    })
}

/// A removed file for a delta.
pub(super) fn delta_retired(file: &RetiredFile) -> DeltaRetired {
    DeltaRetired {
        vnode: file.fid.vnode,
        uniquifier: file.fid.uniquifier,
        removed: file.removed,
        parent: file.parent.vnode,
        parent_uniquifier: file.parent.uniquifier,
        name: AfsName::try_from(file.name.clone()).unwrap_or_default(),
        mode: file.mode.into(),
        owner: file.owner,
        group: file.group,
        mod_time: file.client_time,
        length: file.length,
        data_version: file.data_version,
        copies: (*file.copies).clone(),
    }
}

/// A removed file of a delta, for the volume `volume`.
pub(super) fn retired_of_delta(
    volume: VolumeId,
    file: DeltaRetired,
) -> Result<RetiredFile, AbortCode> {
    let mode = u16::try_from(file.mode).ok();
    let mode = mode.filter(|mode| mode >> 12 == 0);
    if file.vnode.is_directory() || file.copies.is_empty() {
        return Err(AbortCode::VOLSERREAD_DUMPERROR);
    }
    let fid = |vnode, uniquifier| Fid {
        volume,
        vnode,
        uniquifier,
    };
    Ok(RetiredFile {
        fid: fid(file.vnode, file.uniquifier),
        removed: file.removed,
        parent: fid(file.parent, file.parent_uniquifier),
        name: file.name.into_bytes(),
        mode: mode.ok_or(AbortCode::VOLSERREAD_DUMPERROR)?,
        owner: file.owner,
        group: file.group,
        client_time: file.mod_time,
        length: file.length,
        data_version: file.data_version,
        copies: Arc::new(file.copies),
    })
}

/// The header of the volume `target` after a restore from a dump with this head.
pub(super) fn restored_from_dump(
    target: VolumeInfo,
    header: &VolumeHeader,
    cookie: &RestoreCookie,
) -> Result<VolumeInfo, AbortCode> {
    let info = VolumeInfo {
        owner: cellar_wire::ViceId(header.owner as i32),
        max_quota: header.max_quota,
        min_quota: header.min_quota,
        account: header.account,
        created: header.creation_date,
        accessed: header.access_date,
        updated: header.update_date,
        expires: header.expiration_date,
        backed_up: header.backup_date,
        offline_message: message(header.offline_message.as_bytes()),
        ..target
    };
    restored(info, cookie)
}

/// The header of the volume `target` after a restore from a delta with this head.
pub(super) fn restored_from_delta(
    target: VolumeInfo,
    head: &DeltaHead,
    cookie: &RestoreCookie,
) -> Result<VolumeInfo, AbortCode> {
    let info = VolumeInfo {
        owner: head.owner,
        max_quota: head.max_quota,
        min_quota: head.min_quota,
        max_files: head.max_files,
        account: head.account,
        created: head.creation_date,
        accessed: head.access_date,
        updated: head.update_date,
        expires: head.expiration_date,
        backed_up: head.backup_date,
        update_counter: head.update_counter,
        offline_message: message(head.offline_message.as_bytes()),
        message_of_the_day: head.message_of_the_day.clone().into_bytes(),
        ..target
    };
    restored(info, cookie)
}

fn message(message: &[u8]) -> Bytes {
    if message == DUMP_MESSAGE {
        Bytes::new()
    } else {
        Bytes::copy_from_slice(message)
    }
}

fn restored(info: VolumeInfo, cookie: &RestoreCookie) -> Result<VolumeInfo, AbortCode> {
    Ok(VolumeInfo {
        name: checked_name(cookie.name.as_bytes())?,
        kind: kind_of(cookie.volume_type).ok_or(AbortCode::EINVAL)?,
        clone: cookie.clone,
        backup: VolumeId(0),
        restored_from: VolumeId(0),
        // The accesses were to the earlier contents.
        day_use: 0,
        day_use_date: AfsTime(0),
        week_use: [0; 7],
        traffic: None,
        ..info
    })
}

/// The part of a delta's head that does not depend on the base.
pub(super) fn delta_head(info: &VolumeInfo, uniquifier: u32, state: Option<StateId>) -> DeltaHead {
    let short = |text: &Bytes| AfsString::new(text.clone()).unwrap_or_default();
    DeltaHead {
        version: DELTA_VERSION,
        state: state.map(to_wire).unwrap_or_default(),
        source: info.id,
        name: VolumeName::new(info.name.as_bytes()).unwrap_or_default(),
        uniquifier,
        owner: info.owner,
        max_quota: info.max_quota,
        min_quota: info.min_quota,
        max_files: info.max_files,
        account: info.account,
        blocks_used: info.blocks_used,
        files: info.files,
        update_counter: info.update_counter,
        creation_date: info.created,
        access_date: info.accessed,
        update_date: info.updated,
        expiration_date: info.expires,
        backup_date: info.backed_up,
        offline_message: short(&info.offline_message),
        message_of_the_day: short(&info.message_of_the_day),
        ..DeltaHead::default()
    }
}

/// The wire form of a state.
pub(super) fn to_wire(state: StateId) -> VolumeState {
    let mut lineage = [0; 4];
    for (word, bytes) in lineage.iter_mut().zip(state.lineage.as_chunks().0) {
        *word = u32::from_be_bytes(*bytes);
    }
    VolumeState {
        lineage,
        epoch: state.epoch,
    }
}

/// A state from the wire; `None` if it names no state.
pub(super) fn from_wire(state: VolumeState) -> Option<StateId> {
    let mut lineage = [0; 16];
    for (bytes, word) in lineage.as_chunks_mut().0.iter_mut().zip(state.lineage) {
        *bytes = word.to_be_bytes();
    }
    state.is_known().then_some(StateId {
        lineage,
        epoch: state.epoch,
    })
}
