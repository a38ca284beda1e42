//! Mount points: their text, and the volume of a family that they lead to.
//!
//! A mount point is a symbolic link without any execute bit. Its text is `#volume.` or `%volume.`,
//! or either with `cell:` before the volume. The last byte is always a dot. The choice of the
//! volume is the oldest rule of AFS:
//!
//! 1. a name that ends in `.readonly` or `.backup` means exactly that volume;
//! 2. `%` means the read-write volume;
//! 3. `#` means the read-only volume if there is one *and* the mount point itself is in a read-only
//!    volume. A mount point that leads into another cell, or is the start of a path, counts as if
//!    it were in a read-only volume. Otherwise `#` means the read-write volume;
//! 4. if rule 3 selects a read-write volume that does not exist, the read-only one serves;
//! 5. no mount point leads from a backup volume to a backup volume ([`leads_on`]). A home directory
//!    often has a mount point of its own backup volume; the copy of it in the backup would lead to
//!    itself.
//!
//! Sources: afs-rpcs §5.8; OpenAFS and kAFS agree on 1 to 3. 5: OpenAFS's clients.

use std::fmt;

use crate::cell::CellName;

/// Mode bits of a mount point as clients create it.
pub const MOUNT_POINT_MODE: u32 = 0o644;

/// The contents of a mount point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountPoint {
    /// `%` instead of `#`: the read-write volume, whatever volume the mount point stands in.
    pub read_write: bool,
    /// The cell, if not the one of the volume the mount point stands in.
    pub cell: Option<CellName>,
    /// A volume's name, with or without suffix, or its number.
    pub volume: String,
}

/// The three volumes of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum VolumeKind {
    /// The read-write volume.
    ReadWrite,
    /// The read-only copies.
    ReadOnly,
    /// The backup volume.
    Backup,
}

/// Which of a family's volumes the VLDB says exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Existing {
    /// The read-write volume exists.
    pub read_write: bool,
    /// Read-only copies exist.
    pub read_only: bool,
    /// The backup volume exists.
    pub backup: bool,
}

impl MountPoint {
    /// Reads the text of a symbolic link whose mode says that it is a mount point.
    ///
    /// Returns `None` if the text is not one: no `#` or `%`, no final dot, an empty or overlong
    /// volume name, an invalid cell name.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?;
        let (read_write, rest) = match text.strip_prefix('%') {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix('#')?),
        };
        let rest = rest.strip_suffix('.')?;
        let (cell, volume) = match rest.split_once(':') {
            Some((cell, volume)) => (Some(CellName::new(cell).ok()?), volume),
            None => (None, rest),
        };
        let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        let ok = !volume.is_empty() && volume.len() < 65 && volume.chars().all(legal);
        ok.then(|| Self {
            read_write,
            cell,
            volume: volume.to_owned(),
        })
    }

    /// The text to store in the link, with its final dot.
    pub fn text(&self) -> String {
        format!("{self}.")
    }
}

/// As `fs lsmount` shows it: without the final dot.
impl fmt::Display for MountPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.read_write { '%' } else { '#' };
        match &self.cell {
            Some(cell) => write!(f, "{sign}{cell}:{}", self.volume),
            None => write!(f, "{sign}{}", self.volume),
        }
    }
}

/// Whether a symbolic link with this mode is a mount point: no execute bit at all.
pub fn is_mount_point(mode: u32) -> bool {
    mode & 0o111 == 0
}

/// The volume's name without suffix, and the kind that a suffix asks for.
pub fn split_suffix(name: &str) -> (&str, Option<VolumeKind>) {
    if let Some(base) = name.strip_suffix(".readonly") {
        (base, Some(VolumeKind::ReadOnly))
    } else if let Some(base) = name.strip_suffix(".backup") {
        (base, Some(VolumeKind::Backup))
    } else {
        (name, None)
    }
}

/// Rules 1 to 4 of the head comment. `None` if the family has no volume that the mount point could
/// mean.
pub fn choose(
    mount: &MountPoint,
    prefer_read_only: bool,
    existing: Existing,
) -> Option<VolumeKind> {
    if let (_, Some(kind)) = split_suffix(&mount.volume) {
        let exists = match kind {
            VolumeKind::ReadOnly => existing.read_only,
            VolumeKind::Backup => existing.backup,
            VolumeKind::ReadWrite => existing.read_write,
        };
        return exists.then_some(kind);
    }
    if mount.read_write {
        return existing.read_write.then_some(VolumeKind::ReadWrite);
    }
    if existing.read_only && (prefer_read_only || !existing.read_write) {
        return Some(VolumeKind::ReadOnly);
    }
    existing.read_write.then_some(VolumeKind::ReadWrite)
}

/// Rule 5 of the head comment: whether a mount point in one volume (`None`: the start of a path)
/// leads on to another.
pub fn leads_on(from: Option<VolumeKind>, to: VolumeKind) -> bool {
    (from, to) != (Some(VolumeKind::Backup), VolumeKind::Backup)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Option<MountPoint> {
        MountPoint::parse(text.as_bytes())
    }

    #[test]
    fn every_form() {
        let plain = parse("#root.cell.").expect("plain");
        assert_eq!(
            (plain.read_write, plain.volume.as_str()),
            (false, "root.cell")
        );
        assert_eq!(plain.cell, None);
        let written = parse("%other.org:user.ann.").expect("read-write in a cell");
        assert!(written.read_write);
        assert_eq!(
            written.cell.as_ref().map(CellName::as_str),
            Some("other.org")
        );
        assert_eq!(parse("#536870918.").expect("number").volume, "536870918");
        assert_eq!(parse("#a.readonly.").expect("suffix").volume, "a.readonly");
        for text in ["#root.cell.", "%other.org:user.ann."] {
            assert_eq!(parse(text).expect("parses").text(), text);
        }
    }

    #[test]
    fn texts_that_are_no_mount_points() {
        for text in [
            "",
            "#",
            "#.",
            "%x:.",
            "#x",
            "root.cell.",
            "#a b.",
            "#a/b.",
            "#c/d:v.",
            "##v.",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
        assert_eq!(MountPoint::parse(&[b'#', 0xff, b'.']), None);
        assert_eq!(parse(&format!("#{}.", "v".repeat(65))), None);
        assert!(is_mount_point(0o644) && !is_mount_point(0o755) && !is_mount_point(0o001));
    }

    #[test]
    fn the_volume_that_a_name_selects() {
        let both = Existing {
            read_write: true,
            read_only: true,
            backup: false,
        };
        let only_rw = Existing {
            read_only: false,
            ..both
        };
        let only_ro = Existing {
            read_write: false,
            ..both
        };
        let plain = parse("#v.").expect("plain");
        let forced = parse("%v.").expect("forced");
        let named = parse("#v.readonly.").expect("named");
        let backup = parse("%v.backup.").expect("backup");
        use VolumeKind::*;
        assert_eq!(choose(&plain, true, both), Some(ReadOnly));
        assert_eq!(choose(&plain, false, both), Some(ReadWrite));
        assert_eq!(choose(&plain, true, only_rw), Some(ReadWrite));
        assert_eq!(choose(&plain, false, only_ro), Some(ReadOnly));
        assert_eq!(choose(&forced, true, both), Some(ReadWrite));
        assert_eq!(choose(&forced, true, only_ro), None);
        assert_eq!(choose(&named, false, both), Some(ReadOnly));
        assert_eq!(choose(&named, false, only_rw), None);
        assert_eq!(choose(&backup, false, both), None);
    }

    #[test]
    fn no_backup_leads_to_a_backup() {
        use VolumeKind::*;
        for from in [None, Some(ReadWrite), Some(ReadOnly), Some(Backup)] {
            for to in [ReadWrite, ReadOnly, Backup] {
                let refused = from == Some(Backup) && to == Backup;
                assert_eq!(leads_on(from, to), !refused, "{from:?} to {to:?}");
            }
        }
    }
}
