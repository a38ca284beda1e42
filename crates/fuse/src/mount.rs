//! Mounting, and the end of it.
//!
//! A directory can have had several mounts, one over the other or one after the other: a process that takes its own away
//! looks first whether it is the one that is seen there. fuser's session goes by the path alone when it ends, and took
//! away what another process had mounted there since; so it has no mount to take away (`Mount::new`).

use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use cellar_client::cache::{Before, Cache};
use fuser::{Config, MountOption, Session, SessionACL};
use rustix::fs::{AtFlags, CWD, StatxFlags};
use rustix::mount::UnmountFlags;

use crate::filesystem::Filesystem;
use crate::inodes::{Inodes, Node};
use crate::mount_points::{NAME, mount_points};
use crate::notices::{Kernel, Notices, WRITERS};

/// `ENOTCONN`: a mount whose process is gone.
const NOT_CONNECTED: i32 = 107;

/// How a name space is mounted.
#[derive(Clone, Debug)]
pub struct Options {
    /// Programs of every user may use it, not only those of whoever mounts it.
    pub all_users: bool,
    /// Threads that read requests.
    pub threads: usize,
    /// Set-id bits of programs in it count. Only for name spaces whose administrators are trusted.
    pub suid: bool,
}

/// A mounted name space.
#[derive(Debug)]
pub struct Mount {
    directory: PathBuf,
    /// Its device; no other mount has it as long as this process lives.
    device: (u32, u32),
    notices: Arc<Notices>,
    session: Option<JoinHandle<io::Result<()>>>,
    writers: Vec<JoinHandle<()>>,
}

impl Mount {
    /// Mounts `cache` at `directory`. What a process that has gone left mounted there is taken away first.
    /// Must be called in a tokio runtime, which then answers the kernel's requests.
    ///
    /// # Errors
    /// There is no `/dev/fuse`, the directory is none or has such a mount already, or this user may not mount there.
    pub fn new(
        cache: Arc<Cache>,
        root: Option<Arc<cellar_client::cache::Vnode>>,
        directory: &Path,
        options: &Options,
    ) -> io::Result<Self> {
        take_over(directory)?;
        let root = root.map_or(Node::Cells, Node::Vnode);
        let inodes = Arc::new(Inodes::new(root));
        let notices = Notices::new();
        cache.watch(notices.clone());
        let runtime = tokio::runtime::Handle::current();
        let filesystem = Filesystem::new(cache.clone(), inodes.clone(), runtime.clone(), options);
        let can_expire = filesystem.can_expire();
        let requests = filesystem.requests();
        let session = Session::new(filesystem, directory, &config(options))?;
        let device = session.as_fd().try_clone_to_owned()?;
        let can_expire = can_expire.load(Ordering::Acquire);
        let kernel = Arc::new(Kernel::new(std::fs::File::from(device), can_expire));
        requests.set_kernel(kernel.clone());
        drop(requests);
        let write = |number| {
            let (notices, inodes, kernel) = (notices.clone(), inodes.clone(), kernel.clone());
            let (cache, runtime) = (Arc::downgrade(&cache), runtime.clone());
            let changed_names = move |before: &Before| {
                let cache = cache.upgrade()?;
                runtime.block_on(cache.changed_names(before))
            };
            std::thread::Builder::new()
                .name(format!("fuse-notices-{number}"))
                .spawn(move || notices.run(&kernel, &inodes, changed_names))
        };
        let writers = (0..WRITERS).map(write).collect::<io::Result<Vec<_>>>();
        // Those that have been started end.
        let mut writers = writers.inspect_err(|_| notices.end())?;
        let (crowds, dropping) = (notices.crowds(), notices.clone());
        let dropping = std::thread::Builder::new()
            .name("fuse-let-go".to_owned())
            .spawn(move || dropping.let_go(&crowds, &kernel, &inodes));
        writers.push(dropping.inspect_err(|_| notices.end())?);
        let device = device_at(directory).inspect_err(|_| notices.end())?;
        let mut session = session.spawn()?;
        let thread = std::thread::Builder::new().spawn(|| Ok(()))?;
        let thread = std::mem::replace(&mut session.guard, thread);
        // What would take away whatever is mounted there when it is dropped.
        std::mem::forget(session);
        Ok(Self {
            directory: directory.to_owned(),
            device,
            notices,
            session: Some(thread),
            writers,
        })
    }

    /// Whether it was unmounted: then this process has to end.
    pub fn has_ended(&self) -> bool {
        self.session.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Takes it away, also from under programs that still use it: they get errors from then on.
    ///
    /// # Errors
    /// It cannot be unmounted.
    pub fn unmount(mut self) -> io::Result<()> {
        // Of what is mounted over it the user of that has to dispose.
        if device_at(&self.directory).is_ok_and(|device| device == self.device) {
            match rustix::mount::unmount(&self.directory, UnmountFlags::DETACH) {
                // Not ours to take away by a system call: by the program that has the right.
                Err(rustix::io::Errno::PERM) => unmount_by_program(&self.directory)?,
                Err(rustix::io::Errno::INVAL) => {}
                other => other?,
            }
        }
        self.notices.end();
        for writer in self.writers.drain(..) {
            let _panicked = writer.join();
        }
        let Some(session) = self.session.take() else {
            return Ok(());
        };
        // Files that are still open keep the session alive: it ends with this process.
        if session.is_finished() {
            return session.join().unwrap_or(Ok(()));
        }
        Ok(())
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        self.notices.end();
    }
}

fn config(options: &Options) -> Config {
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName(NAME.to_owned()),
        MountOption::Subtype("afs".to_owned()),
        MountOption::NoAtime,
        MountOption::NoDev,
        if options.suid {
            MountOption::Suid
        } else {
            MountOption::NoSuid
        },
    ];
    if options.all_users {
        config.acl = SessionACL::All;
    }
    config.n_threads = Some(options.threads.max(1));
    config.clone_fd = false;
    config
}

/// A mount that a process left behind when it died answers nobody: it is taken away.
fn take_over(directory: &Path) -> io::Result<()> {
    while remove_dead(directory)? {
        tracing::info!(directory = %directory.display(), "took a dead mount away");
    }
    if is_mounted(directory)? {
        return Err(io::Error::new(
            io::ErrorKind::ResourceBusy,
            "is mounted already",
        ));
    }
    if std::fs::metadata(directory)?.is_dir() {
        Ok(())
    } else {
        Err(io::Error::new(
            io::ErrorKind::NotADirectory,
            "not a directory",
        ))
    }
}

/// The device of what is seen at a directory, without a request to whoever answers for it.
fn device_at(directory: &Path) -> io::Result<(u32, u32)> {
    let nothing = StatxFlags::empty();
    let found = rustix::fs::statx(CWD, directory, AtFlags::STATX_DONT_SYNC, nothing)?;
    Ok((found.stx_dev_major, found.stx_dev_minor))
}

/// Whether one of our mounts is seen at a directory, anybody's.
fn is_mounted(directory: &Path) -> io::Result<bool> {
    let directory = std::fs::canonicalize(directory)?;
    Ok(mount_points()?.contains(&directory))
}

/// Takes away what a process that has ended left mounted at `directory`. Answers whether there was such a thing.
///
/// # Errors
/// It cannot be taken away by this user.
pub fn remove_dead(directory: &Path) -> io::Result<bool> {
    match std::fs::metadata(directory) {
        Err(cause) if cause.raw_os_error() == Some(NOT_CONNECTED) => {
            match rustix::mount::unmount(directory, UnmountFlags::DETACH) {
                Err(rustix::io::Errno::PERM) => unmount_by_program(directory)?,
                // Somebody else was faster.
                Err(rustix::io::Errno::INVAL) => {}
                other => other?,
            }
            Ok(true)
        }
        _ => Ok(false),
    }
}

fn unmount_by_program(directory: &Path) -> io::Result<()> {
    let status = std::process::Command::new("fusermount3")
        .args(["-u", "-z", "--"])
        .arg(directory)
        .status()?;
    if status.success() {
        Ok(())
    } else {
        Err(io::Error::other("fusermount3 cannot unmount it"))
    }
}
