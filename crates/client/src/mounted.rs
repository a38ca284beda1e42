//! Paths below a mount of AFS on this machine, by `cellar mount` or by Linux's own client. Both
//! offer extended attributes that identify the vnode of a path. Source: observed in Linux
//! (`fs/afs/xattr.c`): `afs.cell`, and `afs.fid`, hexadecimal.

use std::io;
use std::path::Path;

use cellar_wire::ids::{Fid, Uniquifier, VnodeId, VolumeId};

use crate::cell::CellName;

/// The most bytes of an extended attribute. Source: `XATTR_SIZE_MAX` of Linux.
const VALUE_MAX: usize = 64 << 10;

/// An extended attribute of the file at a path, as text.
///
/// # Errors
/// The path or the attribute does not exist; the value is not text.
pub fn attribute(path: &Path, name: &str) -> io::Result<String> {
    let mut value = vec![0; VALUE_MAX];
    let length = rustix::fs::getxattr(path, name, &mut value[..])?;
    value.truncate(length);
    String::from_utf8(value).map_err(io::Error::other)
}

/// The cell and fid of a path; `None` if it is not in a mounted AFS.
pub fn place(path: &Path) -> Option<(CellName, Fid)> {
    let fid = parse_fid(&attribute(path, "afs.fid").ok()?)?;
    let cell = CellName::new(&attribute(path, "afs.cell").ok()?).ok()?;
    Some((cell, fid))
}

fn parse_fid(text: &str) -> Option<Fid> {
    let mut numbers = text
        .split(':')
        .map(|number| u32::from_str_radix(number, 16).ok());
    let fid = Fid {
        volume: VolumeId(numbers.next()??),
        vnode: VnodeId(numbers.next()??),
        uniquifier: Uniquifier(numbers.next()??),
    };
    numbers.next().is_none().then_some(fid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fids_as_they_are_told() {
        let fid = Fid::new(0x2000_0001, 0x1a, 3);
        assert_eq!(parse_fid("20000001:1a:3"), Some(fid));
        for bad in ["", "1:2", "1:2:3:4", "1:2:x", "1:2:123456789"] {
            assert_eq!(parse_fid(bad), None, "{bad}");
        }
    }

    #[test]
    fn files_outside_afs_have_no_location() {
        assert_eq!(place(Path::new("/proc/self")), None);
        assert_eq!(place(Path::new("/nonexistent")), None);
    }
}
