//! Unix sockets that only their owner can connect to.

use std::io;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::FILE;

/// Connections that may wait to be accepted.
const WAITING_MAX: i32 = 128;

/// Listens at `path`, mode 0600, without blocking. A socket at which no process listens any more
/// is replaced.
///
/// # Errors
/// `AddrInUse` if a process listens there, or if the name is no socket; else those of the system.
pub fn socket(path: &Path) -> io::Result<UnixListener> {
    let is_socket = |about: std::fs::Metadata| about.file_type().is_socket();
    if std::fs::symlink_metadata(path).is_ok_and(is_socket)
        && UnixStream::connect(path)
            .is_err_and(|cause| cause.kind() == io::ErrorKind::ConnectionRefused)
    {
        std::fs::remove_file(path)?;
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // Linux gives the name the mode of the socket: at no moment can others connect.
    rustix::fs::fchmod(&socket, rustix::fs::Mode::from_raw_mode(FILE))?;
    net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    net::listen(&socket, WAITING_MAX)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn only_a_dead_socket_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("it");
        let alive = socket(&path).unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(socket(&path).is_err(), "a process listens there");
        drop(alive);
        drop(socket(&path).unwrap());
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "a file").unwrap();
        assert!(socket(&path).is_err(), "it is no socket");
        assert_eq!(std::fs::read(&path).unwrap(), b"a file");
    }
}
