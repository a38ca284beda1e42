//! Takes the contents of one volume, restores them into another, and compares.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use cellar_volume::{
    FileType, Partition, Restore, RestoreMode, RestoredInfo, Result, VnodeImage, Volume,
    VolumeKind, VolumeSpec,
};
use cellar_wire::ids::{AfsTime, Fid, Uniquifier, ViceId, VnodeId, VolumeId};

/// A vnode with its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Item {
    pub(crate) image: VnodeImage,
    pub(crate) bytes: Bytes,
}

/// Vnodes by number.
pub(crate) type Contents = BTreeMap<u32, Item>;

/// All vnodes to which names lead.
pub(crate) fn contents(volume: &Volume) -> Contents {
    let mut found = Contents::new();
    let mut waiting = vec![volume.root()];
    while let Some(fid) = waiting.pop() {
        if found.contains_key(&fid.vnode.0) {
            continue;
        }
        let status = volume.status(fid).unwrap();
        let bytes = volume.read(fid, 0, status.length as usize).unwrap();
        let mut acl = None;
        if status.kind == FileType::Directory {
            acl = Some(volume.acl(fid).unwrap());
            for entry in volume.entries(fid).unwrap() {
                waiting.push(Fid {
                    volume: fid.volume,
                    vnode: entry.vnode,
                    uniquifier: entry.uniquifier,
                });
            }
        }
        let image = VnodeImage {
            vnode: fid.vnode,
            uniquifier: fid.uniquifier,
            kind: status.kind,
            mode: status.mode,
            link_count: status.link_count,
            data_version: status.data_version,
            client_time: status.client_time,
            server_time: status.server_time,
            author: status.author,
            owner: status.owner,
            group: status.group,
            parent: status.parent,
            length: status.length,
            acl,
            layout: volume.layout(fid).unwrap(),
            copies: None,
            wiped: None,
            policy: 0,
        };
        // Statuses have the parent's uniquifier too, which must be right.
        if fid.vnode != VnodeId::ROOT {
            let parent = Fid {
                volume: fid.volume,
                vnode: status.parent,
                uniquifier: status.parent_uniquifier,
            };
            assert_eq!(volume.status(parent).unwrap().kind, FileType::Directory);
        }
        found.insert(fid.vnode.0, Item { image, bytes });
    }
    found
}

/// Sorts vnodes into the order of dumps: directories, then the others.
pub(crate) fn in_order(contents: &Contents) -> Vec<&Item> {
    let of_kind = |rest: u32| contents.iter().filter(move |(vnode, _)| *vnode % 2 == rest);
    of_kind(1).chain(of_kind(0)).map(|(_, item)| item).collect()
}

/// Puts a vnode with its bytes in parts of odd sizes.
pub(crate) fn put(restore: &mut Restore, item: &Item) -> Result<()> {
    restore.put(&item.image)?;
    let mut rest = item.bytes.clone();
    while !rest.is_empty() {
        let count = rest.len().min(77_777);
        restore.push(rest.split_to(count))?;
    }
    Ok(())
}

/// The info with which a restore of `volume` ends: only the update date and counter differ.
pub(crate) fn info_of(volume: &Volume) -> RestoredInfo {
    let mut info = volume.info();
    info.updated = AfsTime(777);
    info.update_counter = 7;
    RestoredInfo {
        info,
        next_uniquifier: 0,
        received: None,
    }
}

/// An incremental restore of `new` over `old`: unchanged vnodes are only named.
pub(crate) fn restore_over(
    partition: &Partition,
    id: VolumeId,
    old: &Contents,
    new: &Contents,
) -> Result<Arc<Volume>> {
    let mut restore = partition.begin_restore(id, RestoreMode::Incremental)?;
    for item in in_order(new) {
        match old.get(&item.image.vnode.0) {
            Some(same) if same == item => {
                restore.keep(item.image.vnode, item.image.uniquifier)?;
            }
            _ => put(&mut restore, item)?,
        }
    }
    finish(restore)
}

/// Commits with the present info of the volume.
pub(crate) fn finish(restore: Restore) -> Result<Arc<Volume>> {
    let info = info_of(restore.volume());
    restore.commit(info)?.wait()
}

/// Makes an empty volume, to be restored.
pub(crate) fn empty_volume(partition: &Partition, id: VolumeId, kind: VolumeKind) -> Arc<Volume> {
    let spec = VolumeSpec {
        kind,
        root: false,
        ..VolumeSpec::new(id, format!("restored{id}"), ViceId(1), AfsTime(5))
    };
    partition.create_volume(&spec).unwrap().wait().unwrap()
}

/// A fid of a volume.
pub(crate) fn fid(volume: &Volume, vnode: u32, uniquifier: u32) -> Fid {
    Fid {
        volume: volume.id(),
        vnode: VnodeId(vnode),
        uniquifier: Uniquifier(uniquifier),
    }
}
