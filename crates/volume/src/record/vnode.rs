//! The record of a vnode version.

use std::sync::Arc;

use bytes::Bytes;
use cellar_wire::acl::{ACL_SIZE, AccessList, ByteOrder};
use cellar_wire::dir::PAGE_SIZE;
use cellar_wire::ids::{AfsTime, Fid, Uniquifier, ViceId, VnodeId, VolumeId};
use cellar_wire::object::{ArchiveCopies, Contents, Layout, Shape, Wiped};
use cellar_wire::{Decode, Encode};

use super::{Fields, PutFields};
use crate::engine::space::with_checksum;
use crate::error::Result;
use crate::types::{Context, FileType, VnodeImage, VnodeStatus};

/// Form of a record with the meaning: from this epoch on the vnode does not exist.
const FORM_GONE: u8 = 0;
const FORM_VNODE: u8 = 1;
/// Flag in the byte for the body's location: a cut is known.
const HAS_CUT: u8 = 0x10;
/// Flag in the same byte: the directory has a policy.
const HAS_POLICY: u8 = 0x20;
/// Flag in the same byte: the file was in objects before.
const HAS_SERIAL: u8 = 0x40;
/// Flag in the same byte: archives have copies of the file.
const HAS_COPIES: u8 = 0x80;
const FLAGS: u8 = HAS_CUT | HAS_POLICY | HAS_SERIAL | HAS_COPIES;

/// The location of a file's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Body {
    /// Nowhere: the file is empty or a single hole, or the bytes are in this record (links).
    None,
    /// In one record of the table.
    Inline {
        /// Epoch of piece 0.
        epoch: u64,
    },
    /// In blocks that piece records list; for a directory, in pages that piece records hold.
    Pieces,
    /// In objects on other servers. The record's layout names them.
    Objects,
    /// Only in archives: the objects were wiped. The record's copies name them.
    Archived(Wiped),
}

/// Result of decoding a record of a vnode that does not exist any more.
#[derive(Debug)]
pub(crate) struct RemovedVnode;

/// A cut of a body that kept its number. Bytes from `at` on are of this epoch or newer, whatever
/// the pieces say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    pub(crate) epoch: u64,
    pub(crate) at: u64,
}

/// The stored fields of one vnode version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VnodeRecord {
    pub(crate) kind: FileType,
    pub(crate) mode: u16,
    pub(crate) link_count: u32,
    pub(crate) uniquifier: Uniquifier,
    pub(crate) parent: VnodeId,
    pub(crate) parent_uniquifier: Uniquifier,
    pub(crate) length: u64,
    pub(crate) data_version: u64,
    pub(crate) author: ViceId,
    pub(crate) owner: ViceId,
    pub(crate) group: ViceId,
    pub(crate) client_time: AfsTime,
    pub(crate) server_time: AfsTime,
    /// Epoch in which the vnode was made; no version is older.
    pub(crate) birth: u64,
    pub(crate) body: Body,
    /// Number of the vnode's present body. A cut of many pieces starts a new body.
    pub(crate) body_number: u32,
    /// The last cut that a dump of changes must know of.
    pub(crate) cut: Option<Cut>,
    /// A symbolic link's target.
    pub(crate) target: Bytes,
    /// A directory's access list.
    pub(crate) acl: Option<Arc<AccessList>>,
    /// The objects that hold the bytes; present if and only if the body is [`Body::Objects`].
    pub(crate) layout: Option<Arc<Layout>>,
    /// A directory's policy for the location of files; 0: the policy of the volume.
    pub(crate) policy: u32,
    /// For a file that was in objects and is not any more: the highest serial number of these
    /// objects.
    pub(crate) serial: u32,
    /// Copies in archives, of these and of older bytes of the file.
    pub(crate) copies: Option<Arc<ArchiveCopies>>,
}

impl VnodeRecord {
    /// The name of the bytes, if they are in objects or in archives only.
    pub(crate) fn contents(&self) -> Option<Contents> {
        match &self.body {
            Body::Archived(wiped) => Some(wiped.contents()),
            _ => self.layout.as_ref().map(|layout| layout.contents()),
        }
    }

    /// The highest serial number that any object of the file ever had, as far as this record
    /// knows.
    pub(crate) fn last_serial(&self) -> u32 {
        match (&self.body, &self.layout) {
            (Body::Archived(wiped), _) => wiped.serial,
            (_, Some(layout)) => layout.serial,
            _ => self.serial,
        }
    }

    /// The record of a new volume's root directory.
    pub(crate) fn root(owner: ViceId, context: Context) -> Self {
        Self {
            kind: FileType::Directory,
            mode: 0o777,
            link_count: 2,
            uniquifier: Uniquifier::ROOT,
            parent: VnodeId::ROOT,
            parent_uniquifier: Uniquifier::ROOT,
            length: PAGE_SIZE as u64,
            data_version: 1,
            author: context.author,
            owner,
            group: ViceId(0),
            client_time: context.now,
            server_time: context.now,
            birth: 1,
            body: Body::Pieces,
            body_number: 0,
            cut: None,
            target: Bytes::new(),
            acl: Some(Arc::new(AccessList::administrators_only())),
            layout: None,
            policy: 0,
            serial: 0,
            copies: None,
        }
    }

    pub(crate) fn encode(&self) -> Bytes {
        let mut out = Vec::with_capacity(112 + self.target.len());
        out.put_u8(FORM_VNODE);
        out.put_u8(self.kind as u8);
        out.put_u16(self.mode);
        for word in [
            self.link_count,
            self.uniquifier.0,
            self.parent.0,
            self.parent_uniquifier.0,
            self.author.0 as u32,
            self.owner.0 as u32,
            self.group.0 as u32,
            self.client_time.0,
            self.server_time.0,
        ] {
            out.put_u32(word);
        }
        for long in [self.length, self.data_version, self.birth] {
            out.put_u64(long);
        }
        let mut flags = if self.cut.is_some() { HAS_CUT } else { 0 };
        if self.policy != 0 {
            flags |= HAS_POLICY;
        }
        if self.serial != 0 {
            flags |= HAS_SERIAL;
        }
        if self.copies.is_some() {
            flags |= HAS_COPIES;
        }
        match self.body {
            Body::None => out.put_u8(flags),
            Body::Inline { epoch } => {
                out.put_u8(1 | flags);
                out.put_u64(epoch);
            }
            Body::Pieces => out.put_u8(2 | flags),
            Body::Objects => out.put_u8(3 | flags),
            Body::Archived(wiped) => {
                out.put_u8(4 | flags);
                out.extend_from_slice(&wiped.shape.to_xdr());
                out.put_u64(wiped.version);
                out.put_u32(wiped.serial);
                out.put_u32(wiped.volume.0);
            }
        }
        out.put_u32(self.body_number);
        if let Some(cut) = self.cut {
            out.put_u64(cut.epoch);
            out.put_u64(cut.at);
        }
        if self.policy != 0 {
            out.put_u32(self.policy);
        }
        if self.serial != 0 {
            out.put_u32(self.serial);
        }
        if let Some(copies) = &self.copies {
            let bytes = copies.to_xdr();
            out.put_u32(bytes.len() as u32);
            out.extend_from_slice(&bytes);
        }
        match (self.kind, &self.acl, &self.layout) {
            (FileType::Directory, Some(acl), _) => {
                let bytes = acl.to_bytes();
                let last = bytes.iter().rposition(|&byte| byte != 0);
                let end = last.map_or(0, |last| last + 1);
                out.extend(bytes.into_iter().take(end));
            }
            (FileType::File, _, Some(layout)) => out.extend_from_slice(&layout.to_xdr()),
            _ => out.extend_from_slice(&self.target),
        }
        with_checksum(out)
    }

    /// Encodes the record of a vnode that does not exist any more.
    pub(crate) fn encode_removed() -> Bytes {
        with_checksum(vec![FORM_GONE])
    }

    pub(crate) fn decode(value: &Bytes) -> Result<Result<Self, RemovedVnode>> {
        let mut fields = Fields::of(value, "vnode")?;
        match fields.u8()? {
            FORM_GONE => return Ok(Err(RemovedVnode)),
            FORM_VNODE => {}
            _ => return Err(fields.malformed()),
        }
        let kind = match fields.u8()? {
            1 => FileType::File,
            2 => FileType::Directory,
            3 => FileType::Symlink,
            _ => return Err(fields.malformed()),
        };
        let mode = fields.u16()?;
        let mut record = Self {
            kind,
            mode,
            link_count: fields.u32()?,
            uniquifier: Uniquifier(fields.u32()?),
            parent: VnodeId(fields.u32()?),
            parent_uniquifier: Uniquifier(fields.u32()?),
            author: ViceId(fields.i32()?),
            owner: ViceId(fields.i32()?),
            group: ViceId(fields.i32()?),
            client_time: AfsTime(fields.u32()?),
            server_time: AfsTime(fields.u32()?),
            length: fields.u64()?,
            data_version: fields.u64()?,
            birth: fields.u64()?,
            body: Body::None,
            body_number: 0,
            cut: None,
            target: Bytes::new(),
            acl: None,
            layout: None,
            policy: 0,
            serial: 0,
            copies: None,
        };
        let body = fields.u8()?;
        record.body = match body & !FLAGS {
            0 => Body::None,
            1 => Body::Inline {
                epoch: fields.u64()?,
            },
            2 => Body::Pieces,
            3 if kind == FileType::File => Body::Objects,
            4 if kind == FileType::File => Body::Archived(Wiped {
                shape: fields.xdr(Shape::MIN_SIZE)?,
                version: fields.u64()?,
                serial: fields.u32()?,
                volume: VolumeId(fields.u32()?),
            }),
            _ => return Err(fields.malformed()),
        };
        record.body_number = fields.u32()?;
        if body & HAS_CUT != 0 {
            record.cut = Some(Cut {
                epoch: fields.u64()?,
                at: fields.u64()?,
            });
        }
        if body & HAS_POLICY != 0 {
            record.policy = fields.u32()?;
        }
        if body & HAS_SERIAL != 0 {
            record.serial = fields.u32()?;
        }
        if body & HAS_COPIES != 0 {
            let length = fields.u32()? as usize;
            record.copies = Some(Arc::new(fields.xdr(length)?));
        }
        if kind == FileType::Directory {
            let rest = fields.rest();
            let mut bytes = [0; ACL_SIZE];
            let slot = bytes
                .get_mut(..rest.len())
                .ok_or_else(|| fields.malformed())?;
            slot.copy_from_slice(&rest);
            let acl = AccessList::from_bytes(&bytes, ByteOrder::Network)
                .map_err(|_| fields.malformed())?;
            record.acl = Some(Arc::new(acl));
        } else if record.body == Body::Objects {
            record.layout = Some(Arc::new(fields.xdr(fields.left())?));
        } else {
            record.target = fields.rest();
        }
        Ok(Ok(record))
    }

    /// Records that this change, in `epoch`, cuts the body off at `at`. A dump of changes since
    /// before the birth of this vnode needs no record: it has the whole vnode.
    pub(crate) fn note_cut(&mut self, epoch: u64, at: u64) {
        if self.birth < epoch {
            let at = self.cut.map_or(at, |before| before.at.min(at));
            self.cut = Some(Cut { epoch, at });
        }
    }

    /// The vnode without its bytes, in the form of dumps: there the root has no parent directory.
    pub(crate) fn image(&self, vnode: VnodeId) -> VnodeImage {
        let parent = if vnode == VnodeId::ROOT {
            VnodeId(0)
        } else {
            self.parent
        };
        VnodeImage {
            vnode,
            uniquifier: self.uniquifier,
            kind: self.kind,
            mode: self.mode,
            link_count: self.link_count,
            data_version: self.data_version,
            client_time: self.client_time,
            server_time: self.server_time,
            author: self.author,
            owner: self.owner,
            group: self.group,
            parent,
            length: self.length,
            acl: self.acl.clone(),
            layout: self.layout.clone(),
            copies: self.copies.clone(),
            wiped: match self.body {
                Body::Archived(wiped) => Some(wiped),
                _ => None,
            },
            policy: self.policy,
        }
    }

    /// The status as callers see it.
    pub(crate) fn status(&self, volume: VolumeId, vnode: VnodeId) -> VnodeStatus {
        VnodeStatus {
            fid: Fid {
                volume,
                vnode,
                uniquifier: self.uniquifier,
            },
            kind: self.kind,
            mode: self.mode,
            link_count: self.link_count,
            length: self.length,
            data_version: self.data_version,
            author: self.author,
            owner: self.owner,
            group: self.group,
            parent: self.parent,
            parent_uniquifier: self.parent_uniquifier,
            client_time: self.client_time,
            server_time: self.server_time,
        }
    }

    /// Blocks of 1 KiB that are charged for it.
    pub(crate) fn blocks(&self) -> u64 {
        crate::types::blocks_of(self.length)
    }
}

#[cfg(test)]
mod tests {
    use cellar_wire::object::{ArchiveCopy, Placed, Shape};

    use super::*;

    pub(crate) fn sample(kind: FileType) -> VnodeRecord {
        VnodeRecord {
            kind,
            mode: 0o755,
            link_count: 3,
            uniquifier: Uniquifier(9),
            parent: VnodeId(1),
            parent_uniquifier: Uniquifier(1),
            length: 1 << 40,
            data_version: 77,
            author: ViceId(1000),
            owner: ViceId(-204),
            group: ViceId(5),
            client_time: AfsTime(1),
            server_time: AfsTime(u32::MAX),
            birth: 4,
            body: Body::Inline { epoch: 5 },
            body_number: 6,
            cut: None,
            target: Bytes::new(),
            acl: None,
            layout: None,
            policy: 0,
            serial: 0,
            copies: None,
        }
    }

    #[test]
    fn every_form_comes_back_and_no_damaged_one_does() {
        let mut link = sample(FileType::Symlink);
        link.target = Bytes::from_static(b"#root.cell.");
        link.body = Body::None;
        let mut directory = sample(FileType::Directory);
        directory.acl = Some(Arc::new(AccessList::administrators_only()));
        directory.body = Body::Pieces;
        directory.cut = Some(Cut { epoch: 9, at: 1 });
        directory.policy = 7;
        let mut file = sample(FileType::File);
        file.body = Body::Objects;
        file.cut = Some(Cut { epoch: 9, at: 0 });
        let mut back = sample(FileType::File);
        back.serial = 12;
        let copy = ArchiveCopy {
            osd: 9,
            volume: VolumeId(10),
            serial: 1 << 31,
            version: 8,
            data_version: 77,
            length: 1 << 40,
            ..ArchiveCopy::default()
        };
        let copies = ArchiveCopies::from_iter_cut([copy, ArchiveCopy { bad: true, ..copy }]);
        let mut wiped = sample(FileType::File);
        wiped.copies = Some(Arc::new(copies));
        wiped.body = Body::Archived(Wiped {
            shape: Shape::default(),
            version: 8,
            serial: 3,
            volume: VolumeId(10),
        });
        file.copies.clone_from(&wiped.copies);
        file.layout = Some(Arc::new(Layout {
            shape: Shape {
                stripes: 2,
                ..Shape::default()
            },
            version: 8,
            serial: 2,
            volume: VolumeId(10),
            objects: [(3, 1), (4, 2)]
                .map(|(osd, serial)| Placed {
                    osd,
                    serial,
                    version: 8,
                    stale: osd == 4,
                })
                .into_iter()
                .collect::<Vec<_>>()
                .try_into()
                .unwrap_or_default(),
        }));
        for record in [sample(FileType::File), back, wiped, file, link, directory] {
            let encoded = record.encode();
            assert!(matches!(VnodeRecord::decode(&encoded), Ok(Ok(same)) if same == record));
            for bit in 0..encoded.len() * 8 {
                let mut damaged = encoded.to_vec();
                damaged[bit / 8] ^= 1 << (bit % 8);
                assert!(VnodeRecord::decode(&damaged.into()).is_err());
            }
        }
        assert!(matches!(
            VnodeRecord::decode(&VnodeRecord::encode_removed()),
            Ok(Err(RemovedVnode))
        ));
    }
}
