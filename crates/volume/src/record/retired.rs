//! The record of a removed file whose copies in archives are kept.

use std::sync::Arc;

use bytes::Bytes;
use cellar_wire::Encode;
use cellar_wire::ids::{AfsTime, Fid, Uniquifier, ViceId, VnodeId, VolumeId};
use cellar_wire::object::ArchiveCopies;

use super::vnode::VnodeRecord;
use super::{Fields, PutFields};
use crate::engine::space::with_checksum;
use crate::error::Result;
use crate::types::{FileType, RetiredFile};

const FORM: u8 = 1;

/// A removed file, as far as it is needed to make the file again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RetiredRecord {
    pub(crate) removed: AfsTime,
    /// The directory that had the last name of the file.
    pub(crate) parent: VnodeId,
    pub(crate) parent_uniquifier: Uniquifier,
    pub(crate) name: Bytes,
    pub(crate) mode: u16,
    pub(crate) owner: ViceId,
    pub(crate) group: ViceId,
    pub(crate) client_time: AfsTime,
    /// Length and data version of the last bytes. No copy may have them.
    pub(crate) length: u64,
    pub(crate) data_version: u64,
    /// The good copies, the oldest first.
    pub(crate) copies: Arc<ArchiveCopies>,
}

impl RetiredRecord {
    /// The record of a file that loses its last name, `name` in `dir`. `None`: it has no good copy.
    pub(crate) fn of(
        record: &VnodeRecord,
        dir: Fid,
        name: &[u8],
        removed: AfsTime,
    ) -> Option<Self> {
        let copies = record.copies.as_ref()?.iter().filter(|copy| !copy.bad);
        let copies = ArchiveCopies::from_iter_cut(copies.copied());
        if record.kind != FileType::File || copies.is_empty() {
            return None;
        }
        Some(Self {
            removed,
            parent: dir.vnode,
            parent_uniquifier: dir.uniquifier,
            name: Bytes::copy_from_slice(name),
            mode: record.mode,
            owner: record.owner,
            group: record.group,
            client_time: record.client_time,
            length: record.length,
            data_version: record.data_version,
            copies: Arc::new(copies),
        })
    }

    /// The record of a removed file of another server.
    pub(crate) fn received(file: &RetiredFile) -> Self {
        Self {
            removed: file.removed,
            parent: file.parent.vnode,
            parent_uniquifier: file.parent.uniquifier,
            name: file.name.clone(),
            mode: file.mode,
            owner: file.owner,
            group: file.group,
            client_time: file.client_time,
            length: file.length,
            data_version: file.data_version,
            copies: Arc::clone(&file.copies),
        }
    }

    pub(crate) fn encode(&self) -> Bytes {
        let mut out = vec![FORM];
        for word in [
            self.removed.0,
            self.parent.0,
            self.parent_uniquifier.0,
            self.owner.0 as u32,
            self.group.0 as u32,
            self.client_time.0,
        ] {
            out.put_u32(word);
        }
        out.put_u16(self.mode);
        out.put_u64(self.length);
        out.put_u64(self.data_version);
        out.put_string(&self.name);
        out.extend_from_slice(&self.copies.to_xdr());
        with_checksum(out)
    }

    pub(crate) fn decode(value: &Bytes) -> Result<Self> {
        let mut fields = Fields::of(value, "retired file")?;
        if fields.u8()? != FORM {
            return Err(fields.malformed());
        }
        Ok(Self {
            removed: AfsTime(fields.u32()?),
            parent: VnodeId(fields.u32()?),
            parent_uniquifier: Uniquifier(fields.u32()?),
            owner: ViceId(fields.i32()?),
            group: ViceId(fields.i32()?),
            client_time: AfsTime(fields.u32()?),
            mode: fields.u16()?,
            length: fields.u64()?,
            data_version: fields.u64()?,
            name: fields.string()?,
            copies: Arc::new(fields.xdr(fields.left())?),
        })
    }

    /// The file as callers see it.
    pub(crate) fn file(
        self,
        volume: VolumeId,
        vnode: VnodeId,
        uniquifier: Uniquifier,
    ) -> RetiredFile {
        RetiredFile {
            fid: Fid {
                volume,
                vnode,
                uniquifier,
            },
            removed: self.removed,
            parent: Fid {
                volume,
                vnode: self.parent,
                uniquifier: self.parent_uniquifier,
            },
            name: self.name,
            mode: self.mode,
            owner: self.owner,
            group: self.group,
            client_time: self.client_time,
            length: self.length,
            data_version: self.data_version,
            copies: self.copies,
        }
    }
}

#[cfg(test)]
mod tests {
    use cellar_wire::object::ArchiveCopy;

    use super::*;

    #[test]
    fn a_record_comes_back_and_no_damaged_one_does() {
        let copy = ArchiveCopy {
            osd: 9,
            version: 8,
            length: 1 << 40,
            ..ArchiveCopy::default()
        };
        let record = RetiredRecord {
            removed: AfsTime(u32::MAX),
            parent: VnodeId(3),
            parent_uniquifier: Uniquifier(4),
            name: Bytes::from_static(b"\xffname"),
            mode: 0o4755,
            owner: ViceId(-204),
            group: ViceId(5),
            client_time: AfsTime(1),
            length: 1 << 41,
            data_version: 77,
            copies: Arc::new(ArchiveCopies::from_iter_cut([copy; 2])),
        };
        let encoded = record.encode();
        assert_eq!(RetiredRecord::decode(&encoded), Ok(record));
        for bit in 0..encoded.len() * 8 {
            let mut damaged = encoded.to_vec();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(RetiredRecord::decode(&damaged.into()).is_err());
        }
    }
}
