//! The directory of a cache on a disk: its mark, its lock and its UUID.

use std::fs::File;
use std::path::Path;

/// The file that marks a directory as a cache directory. The process that uses the directory locks
/// it.
const MARK: &str = "cellar-cache";

/// The id of the machine's current boot. Source: Linux, random(4).
pub(super) fn this_boot() -> std::io::Result<[u8; 16]> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let number = uuid::Uuid::parse_str(text.trim()).map_err(std::io::Error::other)?;
    Ok(*number.as_bytes())
}

/// Returns the UUID under which servers know the cache in a directory. Later processes with this
/// directory use the same one. The reason: servers reserved vnode numbers for this UUID, and local
/// creates with these numbers may still be pending.
pub(super) fn own_uuid(directory: &Path) -> std::io::Result<[u8; 16]> {
    let path = directory.join("uuid");
    if let Ok(bytes) = std::fs::read(&path)
        && let Ok(uuid) = bytes.try_into()
    {
        return Ok(uuid);
    }
    let uuid = *uuid::Uuid::new_v4().as_bytes();
    cellar_private::replace(&path, &uuid)?;
    Ok(uuid)
}

/// Prepares a directory for this cache alone. A directory with other contents is refused and left
/// unchanged.
pub(super) fn prepare(directory: &Path) -> std::io::Result<File> {
    cellar_private::directory(directory)?;
    let mark = directory.join(MARK);
    let refuse = |why: &str| Err(std::io::Error::other(why));
    if !mark.exists() && std::fs::read_dir(directory)?.next().is_some() {
        return refuse("it is not empty, and not the cache of a mount");
    }
    // Only now is it known that the directory is a cache directory or empty.
    if let Some(found) = cellar_private::narrow(directory)? {
        tracing::warn!(
            directory = %directory.display(), %found,
            "other accounts could use this; their rights are removed"
        );
    }
    let lock = cellar_private::create(&mark)?;
    if rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_err() {
        return refuse("another mount uses it");
    }
    Ok(lock)
}
