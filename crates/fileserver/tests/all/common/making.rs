//! Pending creates of a machine: their reserved numbers, and the call that sends them.

use bytes::Bytes;
use cellar_rpc::CallError;
use cellar_wire::ids::{Fid, Uniquifier, VnodeId, VolumeId};
use cellar_wire::rxafs::{
    self, AfsPath, AfsStoreStatus, CreateRequest, FileType, MakeMany, MakeManyReply,
    ReserveVnodesReply,
};
use cellar_wire::{AfsTime, List};

use super::{Machine, mode, name};

/// The client's time of their creation.
pub(crate) const MADE: AfsTime = AfsTime(1_700_000_000);

/// Numbers that were reserved for a machine, and the entries created under them.
pub(crate) struct Block {
    pub(crate) numbers: ReserveVnodesReply,
    volume: VolumeId,
    files: u32,
    directories: u32,
}

/// A pending create with its bytes.
#[derive(Clone)]
pub(crate) struct Item {
    pub(crate) making: CreateRequest,
    pub(crate) bytes: Bytes,
    pub(crate) fid: Fid,
}

impl Block {
    pub(crate) async fn reserve(machine: &Machine, dir: Fid) -> Self {
        let call = rxafs::ReserveVnodes {
            dir_fid: dir,
            files: 100,
            directories: 100,
        };
        let numbers = machine.ok(&call).await;
        assert_eq!((numbers.files, numbers.directories), (100, 100));
        Self {
            numbers,
            volume: dir.volume,
            files: 0,
            directories: 0,
        }
    }

    pub(crate) fn file(&mut self, dir: Fid, what: &str, bytes: &[u8]) -> Item {
        let number = self.files;
        self.files += 1;
        let fid = Fid {
            volume: self.volume,
            vnode: VnodeId(self.numbers.first_file.0 + 2 * number),
            uniquifier: Uniquifier(self.numbers.first_uniquifier.0 + number),
        };
        let in_status = AfsStoreStatus {
            client_mod_time: Some(MADE),
            ..mode(0o644)
        };
        let making = CreateRequest {
            dir_vnode: dir.vnode,
            dir_uniquifier: dir.uniquifier,
            name: name(what),
            vnode: fid.vnode,
            uniquifier: fid.uniquifier,
            kind: FileType::File,
            in_status,
            text: AfsPath::default(),
            length: bytes.len() as u32,
        };
        let bytes = Bytes::copy_from_slice(bytes);
        Item { making, bytes, fid }
    }

    pub(crate) fn link(&mut self, dir: Fid, what: &str, target: &str) -> Item {
        let mut item = self.file(dir, what, b"");
        item.making.kind = FileType::Symlink;
        item.making.text = AfsPath::try_from(target).unwrap();
        item.making.in_status = mode(0o755);
        item
    }

    pub(crate) fn dir(&mut self, dir: Fid, what: &str) -> Item {
        let number = self.directories;
        self.directories += 1;
        self.files += 1;
        let mut item = self.file(dir, what, b"");
        self.files -= 2;
        item.fid.vnode = VnodeId(self.numbers.first_directory.0 + 2 * number);
        item.fid.uniquifier =
            Uniquifier(self.numbers.first_uniquifier.0 + self.numbers.files + number);
        item.making.vnode = item.fid.vnode;
        item.making.uniquifier = item.fid.uniquifier;
        item.making.kind = FileType::Directory;
        item.making.in_status = mode(0o755);
        item
    }
}

/// MakeMany.
pub(crate) async fn make_many(
    machine: &Machine,
    items: &[Item],
) -> Result<MakeManyReply, CallError> {
    let volume = items.first().map_or(super::OPEN, |item| item.fid.volume);
    let makings = items.iter().map(|item| item.making.clone());
    let makings = List::from_iter_cut(makings);
    let mut call = machine
        .connection
        .open(&MakeMany {
            volume,
            creates: makings,
        })
        .await?;
    for item in items {
        call.write(item.bytes.clone()).await?;
    }
    call.finish();
    call.results().await
}

/// The same; each entry must succeed.
pub(crate) async fn made(machine: &Machine, items: &[Item]) -> MakeManyReply {
    let reply = make_many(machine, items).await.unwrap();
    assert_eq!(codes(&reply), vec![0; items.len()]);
    reply
}

pub(crate) fn codes(reply: &MakeManyReply) -> Vec<i32> {
    reply.results.iter().map(|made| made.code.0).collect()
}
