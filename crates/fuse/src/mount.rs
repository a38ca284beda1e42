//! Mounting and unmounting.
//!
//! A directory can have had several mounts, one over the other or one after the other. A process
//! that unmounts first checks whether its own mount is the visible one. When fuser's session ends
//! it goes by the path alone, and would unmount the mount that another process has made there
//! since. So the session is given no mount to remove (`Mount::new`).

use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use cellar_cachemanager::{Before, Cache};
use fuser::{Config, MountOption, Session, SessionACL};
use rustix::fs::{AtFlags, CWD, StatxFlags};
use rustix::mount::UnmountFlags;

use crate::filesystem::Filesystem;
use crate::inodes::{Inodes, Node};
use crate::mount_points::{NAME, SUBTYPE, mount_points};
use crate::notices::{Kernel, Notices, WRITERS};

/// `ENOTCONN`: a mount whose process is gone.
const NOT_CONNECTED: i32 = 107;

/// How a name space is mounted.
#[derive(Clone, Debug)]
pub struct Options {
    /// Whether programs of every user may use it, not only those of the mounting user.
    pub all_users: bool,
    /// Number of threads that read requests.
    pub threads: usize,
    /// Whether set-id bits of programs in it take effect. Only for name spaces whose administrators
    /// are trusted.
    pub suid: bool,
}

/// A mounted name space.
#[derive(Debug)]
pub struct Mount {
    directory: PathBuf,
    /// The device of the mount. No other mount has it while this process lives.
    device: (u32, u32),
    notices: Arc<Notices>,
    session: Option<JoinHandle<io::Result<()>>>,
    writers: Vec<JoinHandle<()>>,
}

impl Mount {
    /// Mounts `cache` at `directory`. First removes a mount that an ended process left there. Must
    /// be called in a tokio runtime, which then answers the kernel's requests.
    ///
    /// # Errors
    /// There is no `/dev/fuse`, the path is not a directory or has such a mount already, or this
    /// user may not mount there.
    pub fn new(
        cache: Arc<Cache>,
        root: Option<Arc<cellar_cachemanager::Vnode>>,
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
                runtime.block_on(cache.names().changed_names(before))
            };
            std::thread::Builder::new()
                .name(format!("fuse-notices-{number}"))
                .spawn(move || notices.run(&kernel, &inodes, changed_names))
        };
        let writers = (0..WRITERS).map(write).collect::<io::Result<Vec<_>>>();
        // The threads that were started must end.
        let mut writers = writers.inspect_err(|_| notices.end())?;
        let (crowds, dropping) = (notices.crowds(), notices.clone());
        let dropping = std::thread::Builder::new()
            .name("fuse-let-go".to_owned())
            .spawn(move || dropping.drop_crowds(&crowds, &kernel, &inodes));
        writers.push(dropping.inspect_err(|_| notices.end())?);
        let device = device_at(directory).inspect_err(|_| notices.end())?;
        let mut session = session.spawn()?;
        let thread = std::thread::Builder::new().spawn(|| Ok(()))?;
        let thread = std::mem::replace(&mut session.guard, thread);
        // Dropping the session would unmount whatever is mounted there.
        std::mem::forget(session);
        Ok(Self {
            directory: directory.to_owned(),
            device,
            notices,
            session: Some(thread),
            writers,
        })
    }

    /// Returns whether the directory was unmounted; then this process must end.
    pub fn has_ended(&self) -> bool {
        self.session.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Unmounts, even while programs use the mount. They get errors from then on.
    ///
    /// # Errors
    /// The directory cannot be unmounted.
    pub fn unmount(mut self) -> io::Result<()> {
        let ended = self.session.take_if(|session| session.is_finished());
        let ended = ended.map(|session| session.join().unwrap_or(Ok(())));
        // The kernel ends the session when the directory is unmounted. A new mount there may have
        // the device number of this one.
        let was_unmounted = matches!(ended, Some(Ok(())));
        // If another mount covers this one, its user must remove that.
        if !was_unmounted && device_at(&self.directory).is_ok_and(|device| device == self.device) {
            match rustix::mount::unmount(&self.directory, UnmountFlags::DETACH) {
                // This user may not unmount by a system call; fusermount3 may.
                Err(rustix::io::Errno::PERM) => unmount_by_program(&self.directory)?,
                Err(rustix::io::Errno::INVAL) => {}
                other => other?,
            }
        }
        self.notices.end();
        for writer in self.writers.drain(..) {
            let _panicked = writer.join();
        }
        match (ended, self.session.take()) {
            (Some(outcome), _) => outcome,
            (None, Some(session)) if session.is_finished() => session.join().unwrap_or(Ok(())),
            // Open files keep the session alive; it ends with this process.
            _ => Ok(()),
        }
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
        MountOption::Subtype(SUBTYPE.to_owned()),
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

/// Removes a mount of a dead process, which answers no request.
fn take_over(directory: &Path) -> io::Result<()> {
    while remove_dead(directory)? {
        tracing::info!(directory = %directory.display(), "removed a dead mount");
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

/// The device of the mount that is visible at a directory. Makes no request to its file system.
fn device_at(directory: &Path) -> io::Result<(u32, u32)> {
    let nothing = StatxFlags::empty();
    let found = rustix::fs::statx(CWD, directory, AtFlags::STATX_DONT_SYNC, nothing)?;
    Ok((found.stx_dev_major, found.stx_dev_minor))
}

/// Returns whether a mount by `cellar mount` of any user is visible at a directory.
fn is_mounted(directory: &Path) -> io::Result<bool> {
    let directory = std::fs::canonicalize(directory)?;
    Ok(mount_points()?.contains(&directory))
}

/// Removes a mount at `directory` whose process has ended. Returns whether there was one.
///
/// # Errors
/// This user may not unmount it.
pub fn remove_dead(directory: &Path) -> io::Result<bool> {
    match std::fs::metadata(directory) {
        Err(cause) if cause.raw_os_error() == Some(NOT_CONNECTED) => {
            match rustix::mount::unmount(directory, UnmountFlags::DETACH) {
                Err(rustix::io::Errno::PERM) => unmount_by_program(directory)?,
                // Another process was faster.
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
