//! Whose locks go with descriptors of which no close is told.
//!
//! The kernel tells of each `close(2)` with a request of its own (FLUSH), which whoever closes waits for. Files that are
//! opened to be read have nothing to be stored, and are opened without (`FOPEN_NOFLUSH`): half of what a warm open, read and
//! close cost. But with FLUSH go the locks by fcntl(2) that the process has on the file, and read locks may be set through
//! such descriptors. So here is known who set locks through them:
//!
//! 1. When the last descriptor of an open file is gone (RELEASE), so are the locks that were set
//!    through it (`Cache::unlock_open_file`).
//! 2. Others may have descriptors of the same open file, as children do. So it is looked every [`LOOK_TIME`], as long as
//!    there are such locks, whether the process that set them still has a descriptor of that inode; and at once when somebody
//!    here wants a lock on the file. If it has none, its locks are given back.
//! 3. Locks by flock(2) and those of open files (`F_OFD_SETLK`) are not a process's: they stay
//!    until RELEASE. The kernel says which are by flock(2). For the others the thread that waits
//!    for the answer is in the system call, which proc(5) shows. What cannot be told is taken
//!    for an open file's: a lock that stays too long hinders another program, one that goes too
//!    early loses data.
//! 4. The kernel may use the number of an owner again. So what is given back is what that process set as that owner.
//! 5. A file on which programs here have locks is opened with FLUSH (`Requests::open`).
//! 6. All that needs the right to look into every process: where this one does not have it, FLUSH stays ([`can_look`]).
//!
//! What is left of the difference: a process that locks through one descriptor, and closes another one that it had opened
//! before that, keeps its locks, where fcntl(2) would have it lose them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cellar_client::cache::{LockOwner, Vnode};
use parking_lot::Mutex;

/// How often processes are looked at whose locks could have gone.
pub(crate) const LOOK_TIME: Duration = Duration::from_millis(250);
/// Owners of locks that were set through such descriptors.
const SETTERS_MAX: usize = 16_384;
/// How often it is looked what a thread waits for that does not wait yet, and how long after one another.
const TRIES: u32 = 20;
const TRY_TIME: Duration = Duration::from_micros(500);

/// `fcntl(2)` of 64-bit x86 and of others, and of 32-bit programs. No other call of these numbers sets locks.
const FCNTL: [u64; 4] = [72, 25, 55, 221];
/// `F_SETLK`, `F_SETLKW`, and what 32-bit programs have for larger files. Source: Linux.
const SET_LOCK: [u64; 4] = [6, 7, 13, 14];

/// Through which descriptor a thread sets a lock of its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Through {
    thread: u32,
    descriptor: u64,
}

/// Who set locks.
#[derive(Clone, Debug)]
pub(crate) struct Setter {
    /// Of the open file.
    pub(crate) handle: u64,
    /// The number that programs are shown for the file.
    pub(crate) inode: u64,
    pub(crate) vnode: Arc<Vnode>,
    pub(crate) owner: LockOwner,
    pub(crate) pid: u32,
    pub(crate) through: Through,
}

impl Setter {
    fn is(&self, other: &Self) -> bool {
        (self.handle, self.owner, self.pid) == (other.handle, other.owner, other.pid)
    }

    /// Rule 2.
    fn has_closed(&self) -> bool {
        has_descriptor(self.pid, self.through, self.inode) == Some(false)
    }
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Owners {
    setters: Mutex<Vec<Setter>>,
    /// Somebody looks at them.
    watched: AtomicBool,
}

impl Owners {
    /// Whether there is room for one more.
    pub(crate) fn has_room(&self) -> bool {
        self.setters.lock().len() < SETTERS_MAX
    }

    /// A lock was set. Answers whether somebody has to look from now on.
    pub(crate) fn add(&self, setter: Setter) -> bool {
        let mut setters = self.setters.lock();
        setters.retain(|other| !other.is(&setter));
        setters.push(setter);
        !self.watched.swap(true, Ordering::Relaxed)
    }

    /// Rule 1: an open file is no more.
    pub(crate) fn forget(&self, handle: u64) {
        self.setters.lock().retain(|one| one.handle != handle);
    }

    /// Rule 2: those that have no descriptor any more; of one file, or of all. Blocks for a moment.
    pub(crate) fn take_closed(&self, of: Option<&Arc<Vnode>>) -> Vec<Setter> {
        let all = self.setters.lock().clone();
        let mut closed = all;
        closed.retain(|one| of.is_none_or(|vnode| Arc::ptr_eq(vnode, &one.vnode)));
        closed.retain(Setter::has_closed);
        if !closed.is_empty() {
            let mut setters = self.setters.lock();
            setters.retain(|one| !closed.iter().any(|other| other.is(one)));
        }
        closed
    }

    /// Forgets who has no lock any more. Answers whether whoever looks has to go on.
    pub(crate) fn go_on(&self, has_locks: impl Fn(&Setter) -> bool) -> bool {
        let mut setters = self.setters.lock();
        setters.retain(|one| has_locks(one));
        let more = !setters.is_empty();
        if !more {
            self.watched.store(false, Ordering::Relaxed);
        }
        more
    }
}

/// Rule 6: whether this process sees what others do.
pub(crate) fn can_look() -> bool {
    // Where processes have other numbers than in proc(5) they would seem to be gone.
    let me = std::fs::read_link("/proc/self");
    let is_mine = me.is_ok_and(|me| me.as_os_str() == std::process::id().to_string().as_str());
    let has_inodes =
        std::fs::read_to_string("/proc/self/fdinfo/0").is_ok_and(|text| inode_in(&text).is_some());
    let has_calls = std::fs::read_to_string("/proc/self/syscall").is_ok();
    rustix::process::geteuid().is_root() && is_mine && has_inodes && has_calls
}

/// What a thread that waits for a lock sets it through. `None`: that is no lock of its process, or cannot be told.
pub(crate) async fn through(thread: u32) -> Option<Through> {
    for _ in 0..TRIES {
        let text = std::fs::read_to_string(format!("/proc/{thread}/syscall")).ok()?;
        if !text.starts_with("running") {
            let descriptor = descriptor_in(&text)?;
            return Some(Through { thread, descriptor });
        }
        tokio::time::sleep(TRY_TIME).await;
    }
    None
}

/// The descriptor in a call of fcntl(2) that sets a lock of the process. Source: proc(5).
fn descriptor_in(call: &str) -> Option<u64> {
    let mut words = call.split_ascii_whitespace();
    let number: u64 = words.next()?.parse().ok()?;
    let mut argument = || u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok();
    let (descriptor, operation) = (argument()?, argument()? & 0xffff_ffff);
    let sets = FCNTL.contains(&number) && SET_LOCK.contains(&operation);
    sets.then_some(descriptor & 0xffff_ffff)
}

fn inode_in(info: &str) -> Option<u64> {
    let line = info.lines().find_map(|line| line.strip_prefix("ino:"))?;
    line.trim().parse().ok()
}

/// Whether a process has a descriptor of an inode, in the table of that thread or of its first one: those are one, but for
/// very few programs. `None`: nobody says. No file is asked, which might be of a server that is silent.
fn has_descriptor(pid: u32, through: Through, inode: u64) -> Option<bool> {
    let table = |thread: u32| format!("/proc/{pid}/task/{thread}/fdinfo");
    let is_it = |path: &std::path::Path| {
        let info = std::fs::read_to_string(path);
        info.is_ok_and(|info| inode_in(&info) == Some(inode))
    };
    let own = table(through.thread);
    if is_it(format!("{own}/{}", through.descriptor).as_ref()) {
        return Some(true);
    }
    // How many it has; found: none are counted any more.
    let look = |table: &str| -> std::io::Result<(usize, bool)> {
        let mut count = 0;
        for entry in std::fs::read_dir(table)? {
            count += 1;
            if is_it(&entry?.path()) {
                return Ok((count, true));
            }
        }
        Ok((count, false))
    };
    let mut seen = 0;
    for thread in [through.thread, pid] {
        match look(&table(thread)) {
            Ok((_, true)) => return Some(true),
            Ok((count, false)) => seen += count,
            Err(_) => {}
        }
        if thread == pid {
            break;
        }
    }
    if seen > 0 {
        return Some(false);
    }
    // Its first thread has ended, or all have.
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else {
        return is_gone(pid).then_some(false);
    };
    for thread in threads.flatten() {
        match look(&format!("{}/fdinfo", thread.path().display())) {
            Ok((_, true)) => return Some(true),
            Err(cause) if cause.kind() == std::io::ErrorKind::PermissionDenied => return None,
            _ => {}
        }
    }
    Some(false)
}

/// Whether there is no such process: that proc(5) does not have it may have another reason.
fn is_gone(pid: u32) -> bool {
    let pid = i32::try_from(pid)
        .ok()
        .and_then(rustix::process::Pid::from_raw);
    pid.is_some_and(|pid| rustix::process::test_kill_process(pid) == Err(rustix::io::Errno::SRCH))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::MetadataExt;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn whose_a_lock_is_by_the_call() {
        // Linux 6.18, x86-64: F_SETLK through 3, F_OFD_SETLKW, flock(2), a thread that runs, one that is in no call.
        let lock = "72 0x3 0x6 0x7ffc6f0 0x0 0x0 0x0 0x7ffc6d8 0x7f9\n";
        assert_eq!(descriptor_in(lock), Some(3));
        for other in [
            "72 0x3 0x26 0x7ffc6f0 0x0 0x0 0x0 0x7ffc6d8 0x7f9\n",
            "73 0x3 0x6 0x0 0x0 0x0 0x0 0x7ffc6d8 0x7f9\n",
            "running\n",
            "-1 0x7ffc6d8 0x7f9\n",
            "",
        ] {
            assert_eq!(descriptor_in(other), None, "{other}");
        }
    }

    #[test]
    fn who_has_a_descriptor() {
        let file = std::fs::File::open("/proc/self/exe").expect("a file");
        let inode = file.metadata().expect("its inode").ino();
        let pid = std::process::id();
        let through = |descriptor| Through {
            thread: pid,
            descriptor,
        };
        let descriptor = file.as_raw_fd() as u64;
        assert_eq!(has_descriptor(pid, through(descriptor), inode), Some(true));
        let other = has_descriptor(pid, through(descriptor + 1000), inode);
        assert_eq!(other, Some(true), "by another number");
        assert_eq!(
            has_descriptor(pid, through(descriptor), u64::MAX),
            Some(false)
        );
        let mut child = Command::new("sleep")
            .arg("1000")
            .stdin(Stdio::null())
            .spawn()
            .expect("sleep");
        let through = Through {
            thread: child.id(),
            descriptor,
        };
        assert_eq!(has_descriptor(child.id(), through, u64::MAX), Some(false));
        child.kill().expect("kill");
        // It has ended and is not waited for; then it is gone.
        while has_descriptor(child.id(), through, inode) != Some(false) {
            std::thread::sleep(Duration::from_millis(1));
        }
        child.wait().expect("its end");
        assert_eq!(has_descriptor(child.id(), through, inode), Some(false));
    }
}
