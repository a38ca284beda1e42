//! Memory back to the system after a flood.
//!
//! The C library's allocator keeps what is freed between blocks that are in use, so a process stays
//! as large as a flood has made it until the allocator is told to look for whole free pages.

/// Has the allocator return what it does not need. Rare: a sweep asks after its tables have shrunk.
pub(crate) fn give_back() {
    // On a thread of its own: with a large heap it takes some milliseconds.
    let spawned = std::thread::Builder::new()
        .name("give-back".to_owned())
        .spawn(trim);
    if let Err(cause) = spawned {
        tracing::debug!(%cause, "memory is not given back");
    }
}

#[cfg(target_env = "gnu")]
#[allow(unsafe_code, reason = "no safe interface to malloc_trim exists")]
fn trim() {
    // SAFETY: it takes no pointers, and may be called by any thread at any time.
    let released = unsafe { libc::malloc_trim(0) };
    tracing::debug!(released, "gave memory back");
}

#[cfg(not(target_env = "gnu"))]
fn trim() {}
