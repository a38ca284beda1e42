//! The capabilities that the mount asks the kernel for.

use std::sync::atomic::Ordering;

use fuser::{InitFlags, KernelConfig};

use super::Filesystem;

/// Bytes of one write.
pub(crate) const WRITE_BYTES: u32 = 1 << 20;
/// The most requests for read-ahead and write-back. Requests to a silent server leave room.
const BACKGROUND: u16 = 512;

impl Filesystem {
    /// Asks for the capabilities, as far as the kernel has them.
    pub(super) fn negotiate(&self, config: &mut KernelConfig) {
        let wanted = InitFlags::FUSE_ATOMIC_O_TRUNC
            | InitFlags::FUSE_PARALLEL_DIROPS
            | InitFlags::FUSE_CACHE_SYMLINKS
            // Always: if the kernel keeps a listing, nothing else would deliver the attributes.
            | InitFlags::FUSE_DO_READDIRPLUS
            | InitFlags::FUSE_ASYNC_DIO
            | InitFlags::FUSE_POSIX_LOCKS
            | InitFlags::FUSE_FLOCK_LOCKS
            // Otherwise each write(2) first asks for the extended attribute of capabilities.
            | InitFlags::FUSE_HANDLE_KILLPRIV_V2;
        // An older kernel lacks some of these, and sends more requests then.
        let _lacking = config.add_capabilities(wanted & config.capabilities());
        let through = InitFlags::FUSE_PASSTHROUGH & config.capabilities();
        let is_kept = self.requests.cache.options().directory.is_some();
        if is_kept && !through.is_empty() && config.set_max_stack_depth(1).is_ok() {
            let _lacking = config.add_capabilities(through);
            self.requests.passthrough.works();
        }
        let _largest = config.set_max_write(WRITE_BYTES);
        let _largest = config.set_max_readahead(WRITE_BYTES);
        let _largest = config.set_max_background(BACKGROUND);
        let can = config
            .capabilities()
            .contains(InitFlags::FUSE_HAS_EXPIRE_ONLY);
        self.can_expire.store(can, Ordering::Release);
    }
}
