//! Returns memory to the system after a flood.
//!
//! The C library's allocator keeps freed memory between blocks that are in use. After a flood the
//! process stays large until the allocator is asked to release whole free pages.

/// Asks the allocator to release unused memory. Rare: only after a sweep has shrunk its tables.
pub(crate) fn give_back() {
    // Runs on its own thread, since it takes some milliseconds with a large heap.
    let spawned = std::thread::Builder::new()
        .name("give-back".to_owned())
        .spawn(trim);
    if let Err(cause) = spawned {
        tracing::debug!(%cause, "cannot start the thread that releases memory");
    }
}

#[cfg(target_env = "gnu")]
#[allow(unsafe_code, reason = "no safe interface to malloc_trim exists")]
fn trim() {
    // SAFETY: it takes no pointers, and any thread may call it at any time.
    let released = unsafe { libc::malloc_trim(0) };
    tracing::debug!(released, "released free memory to the system");
}

#[cfg(not(target_env = "gnu"))]
fn trim() {}
