//! The directories where `cellar mount` has mounted, from the kernel's list of mounts.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// The source of our mounts in the kernel's list.
pub(crate) const NAME: &str = "cellar";
/// The subtype of file system: the kernel lists mounts as `fuse.cellar`.
pub(crate) const SUBTYPE: &str = "cellar";
/// The types of file system. Mounts by earlier versions are `fuse` by root, and `fuse.afs` by other
/// users.
const KINDS: [&str; 3] = ["fuse.cellar", "fuse", "fuse.afs"];

/// The visible mounts by `cellar mount`. A mount that another one covers is not listed.
///
/// # Errors
/// The kernel's list cannot be read.
pub fn mount_points() -> io::Result<Vec<PathBuf>> {
    Ok(listed(&std::fs::read_to_string("/proc/self/mountinfo")?))
}

/// Source: proc(5). A later line covers an earlier one at the same directory.
fn listed(mounts: &str) -> Vec<PathBuf> {
    let mut places = HashMap::new();
    for (number, line) in mounts.lines().enumerate() {
        let (mount, system) = line.split_once(" - ").unwrap_or_default();
        let Some(place) = mount.split(' ').nth(4) else {
            continue;
        };
        let mut words = system.split(' ');
        let kind = words.next().unwrap_or_default();
        let ours = KINDS.contains(&kind) && words.next() == Some(NAME);
        places.insert(place, (number, ours));
    }
    let mut ours: Vec<_> = places.into_iter().filter(|(_, (_, ours))| *ours).collect();
    ours.sort_by_key(|(_, (number, _))| *number);
    ours.into_iter()
        .map(|(place, _)| unescaped(place))
        .collect()
}

/// Decodes octal escapes, which stand for blanks and similar characters.
fn unescaped(text: &str) -> PathBuf {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, more)) = rest.split_first() {
        let number = more.get(..3).filter(|_| *first == b'\\');
        let number = number.and_then(|digits| std::str::from_utf8(digits).ok());
        match number.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &more[3..];
            }
            None => {
                bytes.push(*first);
                rest = more;
            }
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn ours_among_others() {
        // Linux 6.18: the first mount by root, the second by fusermount3.
        let text = "22 1 8:1 / / rw - ext4 /dev/root rw\n\
                    30 22 0:44 / /mnt/with\\040blank rw,nosuid,nodev - fuse cellar rw,user_id=0,group_id=0\n\
                    31 22 0:45 / /other rw - fuse.afs AFS rw\n\
                    32 22 0:46 / /afs rw shared:3 - fuse.cellar cellar rw,user_id=1000\n\
                    33 22 0:47 / /hidden rw - fuse cellar rw\n\
                    34 33 0:48 / /hidden rw - tmpfs none rw\n";
        assert_eq!(
            listed(text),
            [Path::new("/mnt/with blank"), Path::new("/afs")]
        );
        assert_eq!(unescaped("a\\"), Path::new("a\\"));
    }
}
