//! The errno of each failure, for programs that call through the kernel.

use cellar_rpc::CallError;
use cellar_wire::abort::AbortCode;

use crate::error::{Error, PathProblem};

const ENOENT: i32 = 2;
const EIO: i32 = 5;
const EACCES: i32 = 13;
const EBUSY: i32 = 16;
const EEXIST: i32 = 17;
const ENODEV: i32 = 19;
const ENOTDIR: i32 = 20;
const EISDIR: i32 = 21;
const EINVAL: i32 = 22;
const ENOSPC: i32 = 28;
const EROFS: i32 = 30;
const ENAMETOOLONG: i32 = 36;
const ELOOP: i32 = 40;
const ETIMEDOUT: i32 = 110;
const EDQUOT: i32 = 122;
const EKEYEXPIRED: i32 = 127;
/// The largest errno that servers send as it is.
const ERRNO_MAX: i32 = 133;

/// The errno of a failed operation. Sources: afs-rpcs §16; kAFS has the same numbers, except for
/// `ENODEV`.
/// - `ETIMEDOUT`: a server does not answer.
/// - `EBUSY`: a server was busy for longer than the client waits.
/// - `ENODEV`: no server has the volume on line.
/// - `EKEYEXPIRED`: the token has expired.
pub fn errno(error: &Error) -> i32 {
    match error {
        Error::UnknownCell(_) | Error::NoSuchVolume { .. } | Error::NoSuchSite { .. } => ENODEV,
        Error::Database { cause, .. }
        | Error::DatabaseUnreachable { cause, .. }
        | Error::Fileserver { cause, .. }
        | Error::Server { cause, .. } => of_call(cause),
        Error::Path { problem, .. } => match problem {
            PathProblem::NotFound
            | PathProblem::NoSuchCell(_)
            | PathProblem::NotAfs
            | PathProblem::LeavesAfs(_) => ENOENT,
            PathProblem::NotADirectory => ENOTDIR,
            PathProblem::IsADirectory => EISDIR,
            PathProblem::Loop | PathProblem::BackupInBackup => ELOOP,
            PathProblem::BadMountPoint(_) => ENODEV,
            PathProblem::BadName => ENAMETOOLONG,
            PathProblem::Exists => EEXIST,
            PathProblem::NotChangeable => EROFS,
        },
        Error::NoDevices { .. } => ENOSPC,
        Error::Local { cause, .. } => cause.raw_os_error().unwrap_or(EIO),
        // An answer that makes no sense, and errors that do not occur on a mount.
        _ => EIO,
    }
}

/// The errno of a failed call.
pub fn of_call(cause: &CallError) -> i32 {
    let code = match cause {
        CallError::Aborted(code) => code.to_plain(),
        CallError::BadReply(_) | CallError::AnsweredEarly => return EIO,
        _ => return ETIMEDOUT,
    };
    match code {
        AbortCode::VNOVNODE => ENOENT,
        AbortCode::VNOVOL | AbortCode::VMOVED | AbortCode::VOFFLINE | AbortCode::VSALVAGE => ENODEV,
        AbortCode::VSALVAGING | AbortCode::VNOSERVICE => ENODEV,
        AbortCode::VBUSY | AbortCode::VRESTARTING => EBUSY,
        AbortCode::VDISKFULL => ENOSPC,
        AbortCode::VOVERQUOTA => EDQUOT,
        AbortCode::RX_CALL_DEAD | AbortCode::RX_CALL_TIMEOUT => ETIMEDOUT,
        AbortCode::RXKADEXPIRED | AbortCode::VICETOKENDEAD => EKEYEXPIRED,
        AbortCode::RXKADUNKNOWNKEY | AbortCode::RXKADBADTICKET | AbortCode::RXKADNOAUTH => EACCES,
        AbortCode::RXGEN_OPCODE => EINVAL,
        AbortCode::VRESTRICTED => EACCES,
        // The other codes of volumes: VIO, and codes that no client call is answered with. As errno
        // numbers they would mean something else (112 is EHOSTDOWN).
        AbortCode(101..=113) => EIO,
        AbortCode(plain @ 1..=ERRNO_MAX) => plain,
        _ => EIO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_that_programs_get() {
        let file = |cause| {
            errno(&Error::Fileserver {
                what: String::new(),
                cause,
            })
        };
        assert_eq!(file(CallError::Dead), ETIMEDOUT);
        assert_eq!(file(CallError::Timeout), ETIMEDOUT);
        assert_eq!(file(CallError::Aborted(AbortCode::EACCES)), EACCES);
        assert_eq!(file(CallError::Aborted(AbortCode::VOVERQUOTA)), EDQUOT);
        assert_eq!(file(CallError::Aborted(AbortCode::VNOVNODE)), ENOENT);
        assert_eq!(file(CallError::Aborted(AbortCode(-7))), EIO);
        for (code, expected) in [
            (AbortCode::VIO, EIO),
            (AbortCode::EIO, EIO),
            (AbortCode::EIO.for_host(true), EIO),
            (AbortCode::VVOLEXISTS, EIO),
            (AbortCode::VRESTRICTED, EACCES),
        ] {
            assert_eq!(file(CallError::Aborted(code)), expected, "{code:?}");
        }
    }
}
