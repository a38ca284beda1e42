//! Finds the fault of a dump that cannot be restored. The server returns the same code for every
//! fault.

use std::path::Path;

use cellar_wire::dump::{DumpError, Item, Reader};
use cellar_wire::ids::VnodeId;
use tokio::io::AsyncReadExt;

/// Bytes of the file that are read at a time.
const PIECE: usize = 256 * 1024;
/// The type of a directory in a vnode's record.
const DIRECTORY: u8 = 2;

/// The first fault of the dump in a file, as a sentence. `None` if no fault can be found without a
/// volume, or if the file cannot be read.
pub(super) async fn of_file(path: &Path) -> Option<String> {
    let mut file = tokio::fs::File::open(path).await.ok()?;
    let mut check = Check::default();
    let mut piece = vec![0; PIECE];
    loop {
        let count = file.read(&mut piece).await.ok()?;
        check.read(&piece[..count]);
        if count == 0 || check.fault.is_some() {
            return check.fault;
        }
    }
}

/// A check of a dump that arrives in pieces.
#[derive(Default)]
pub(super) struct Check {
    reader: Reader,
    /// Whether the dump contains all vnodes, not only the changed ones.
    is_full: bool,
    has_root: bool,
    fault: Option<String>,
}

impl Check {
    /// Checks the next piece; an empty piece is the end.
    pub(super) fn read(&mut self, piece: &[u8]) {
        if self.fault.is_some() {
            return;
        }
        self.fault = match piece {
            [] => self.end(),
            _ => self.feed(piece).err().map(|fault| fault.to_string()),
        };
    }

    /// The first fault found, as a sentence.
    pub(super) fn fault(self) -> Option<String> {
        self.fault
    }

    fn feed(&mut self, bytes: &[u8]) -> Result<(), DumpError> {
        self.reader.feed(bytes);
        while let Some(item) = self.reader.next_item()? {
            match item {
                Item::Dump(head) => self.is_full = head.dates.iter().any(|(from, _)| from.0 == 0),
                Item::Vnode(record) if record.vnode == VnodeId::ROOT => {
                    let kind = record.attributes.map(|attributes| attributes.file_type);
                    self.has_root = kind.is_none_or(|kind| kind == DIRECTORY);
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn end(&self) -> Option<String> {
        if let Err(fault) = self.reader.finish() {
            return Some(fault.to_string());
        }
        (self.is_full && !self.has_root)
            .then(|| "the dump has no root directory (vnode 1)".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use cellar_wire::dump::{DumpHeader, VnodeAttributes, VnodeRecord, VolumeHeader, write};
    use cellar_wire::ids::{AfsTime, Uniquifier, VolumeId};

    use super::*;

    /// The fault reported for a dump since that time with one vnode of that type.
    fn fault(since: u32, vnode: u32, file_type: u8) -> Option<String> {
        let mut dump = BytesMut::new();
        let dates = vec![(AfsTime(since), AfsTime(9))];
        let head = DumpHeader {
            volume: VolumeId(7),
            dates,
            ..DumpHeader::default()
        };
        write::dump_header(&mut dump, &head);
        write::volume_header(&mut dump, &VolumeHeader::default());
        let attributes = VnodeAttributes {
            file_type,
            ..VnodeAttributes::default()
        };
        let record = VnodeRecord {
            vnode: VnodeId(vnode),
            uniquifier: Uniquifier(1),
            attributes: Some(attributes),
        };
        write::vnode(&mut dump, &record);
        write::end(&mut dump);
        let mut check = Check::default();
        check.read(&dump);
        check.read(&[]);
        check.fault()
    }

    #[test]
    fn a_dump_that_ends_early_is_no_fault_before_its_end() {
        let mut check = Check::default();
        let mut dump = BytesMut::new();
        write::dump_header(&mut dump, &DumpHeader::default());
        check.read(&dump);
        assert_eq!(check.fault, None);
        check.read(&[]);
        let fault = check.fault();
        assert!(fault.is_some());
        let mut check = Check::default();
        check.read(b"no dump at all, but long enough to be one");
        let first = check.fault.clone();
        assert!(first.is_some());
        check.read(&[]);
        assert_eq!(check.fault(), first, "the first fault is reported");
    }

    #[test]
    fn a_full_dump_needs_a_root_directory() {
        let missing = Some("the dump has no root directory (vnode 1)".to_owned());
        assert_eq!(fault(0, 1, DIRECTORY), None);
        assert_eq!(fault(0, 3, DIRECTORY), missing);
        assert_eq!(fault(0, 1, 1), missing);
        // A dump of changes need not contain the root directory.
        assert_eq!(fault(5, 2, 1), None);
    }
}
