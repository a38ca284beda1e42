//! The one place that picks an abort code.
//!
//! Handlers fail with a [`Refusal`], which names the reason and not a number. This module maps it
//! to the number that AFS clients expect, or to the universal errno code for a host that
//! understands these. It also has the volume server's codes.
//!
//! Source: observed of OpenAFS 1.8's file server, call by call.

use cellar_fileobjects::Failure;
use cellar_volume::Error;
use cellar_wire::afsvol::WRONG_BASE;
use cellar_wire::ids::Fid;
use cellar_wire::{AbortCode, uae};

use crate::host::{HostSlot, NotReady};

/// Why a call is refused.
#[derive(Clone, Debug)]
pub(crate) enum Refusal {
    /// The store's error.
    Store(Error),
    /// The caller lacks the right, or the mode bits forbid it.
    NoRight,
    /// The operation is restricted to administrators.
    NotAdministrator,
    /// An argument is never valid.
    Invalid,
    /// The call names volume 0 or vnode 0.
    NoFid,
    /// The volume is not on this server, or not in service.
    NoVolume,
    /// The volume was taken off line.
    Offline,
    /// The volume or the server is busy; the client retries.
    Busy,
    /// The file is wiped, and its policy forbids that opening it begins a recall.
    NotRecalled,
    /// The file is wiped, and its recall is over a limit.
    OverRecallLimit,
    /// A policy may send the file to devices, and the devices or the policies are not known since
    /// the start.
    NotKnownYet,
    /// The volume moved to another server.
    Moved,
    /// The host cannot be called back.
    HostSilent,
    /// The protection database cannot be reached.
    NoProtection,
    /// A name is too long (256 bytes or more).
    NameTooLong,
    /// The access list has no room.
    ListTooLong,
    /// A position or length is too large for this form of the call.
    TooBig,
    /// Another lock conflicts; or other hosts use a directory for which a lease is requested.
    Locked,
    /// A host other than the caller's has the lease of the directory. The lease must be recalled
    /// and the work started again.
    Leased(Fid, Option<HostSlot>),
    /// The limit of locks of a file or of a machine is reached.
    TooManyLocks,
    /// The client stopped sending before it had sent the announced bytes.
    StoppedSending,
    /// The transport failed, with its own code.
    Call(AbortCode),
    /// The bytes of a file could not be read from or written to objects: EIO, ENOSPC or VBUSY.
    Objects(AbortCode),
    /// A code that is not an errno, passed unchanged.
    Code(AbortCode),
    /// `ECONNREFUSED`, the constant answer of CheckToken.
    ConnectionRefused,
    /// `EOPNOTSUPP`, the constant answer of GetRootVolume.
    NotSupported,
}

/// The numbers that old clients expect for errno values that differ between systems.
const OLD_ELOOP: AbortCode = AbortCode(90);
const OLD_EOPNOTSUPP: AbortCode = AbortCode(122);
const OLD_ECONNREFUSED: AbortCode = AbortCode(130);
/// Linux's own number, which as a plain code would mean VMOVED.
const LINUX_ECONNREFUSED: i32 = 111;
/// Linux's `ENOLCK`.
const ENOLCK: i32 = 37;
const PROTECTION_UNREACHABLE: AbortCode = AbortCode(-1001);
/// A negative EPIPE: the code with which file servers end a store whose client fell silent.
const STOPPED_SENDING: AbortCode = AbortCode(-32);

impl Refusal {
    /// The code for a host that does or does not understand universal errno codes.
    pub(crate) fn code(&self, understands_uae: bool) -> AbortCode {
        let old = |plain: AbortCode, errno: i32| {
            if understands_uae {
                uae::from_errno(errno).unwrap_or(plain)
            } else {
                plain
            }
        };
        let code = match self {
            Self::Store(Error::Loop) => return old(OLD_ELOOP, AbortCode::ELOOP.0),
            Self::NotSupported => return old(OLD_EOPNOTSUPP, AbortCode::EOPNOTSUPP.0),
            Self::ConnectionRefused => return old(OLD_ECONNREFUSED, LINUX_ECONNREFUSED),
            Self::Call(code) | Self::Code(code) => return *code,
            Self::Store(error) => store_code(error),
            Self::Objects(code) => match code.to_plain() {
                AbortCode::ENOSPC => AbortCode::VDISKFULL,
                plain => plain,
            },
            Self::NoRight => AbortCode::EACCES,
            Self::NotAdministrator => AbortCode::EPERM,
            Self::Invalid | Self::NoFid => AbortCode::EINVAL,
            Self::NoVolume => AbortCode::VNOVOL,
            Self::Offline => AbortCode::VOFFLINE,
            Self::Busy | Self::NotKnownYet | Self::Leased(..) => AbortCode::VBUSY,
            // Not VMOVED. OpenAFS's clients treat the two alike. Linux (7.3) hangs forever after
            // VMOVED: it blocks its own query to the VLDB, for which it then waits.
            Self::Moved => AbortCode::VNOVOL,
            // Chosen by trials with three clients; docs/operating/archives.md has the table.
            Self::NotRecalled | Self::OverRecallLimit => AbortCode::ENOMEDIUM,
            Self::HostSilent => AbortCode::RX_CALL_DEAD,
            Self::NoProtection => PROTECTION_UNREACHABLE,
            Self::NameTooLong => AbortCode::ENAMETOOLONG,
            Self::ListTooLong => AbortCode::E2BIG,
            Self::TooBig => AbortCode::EFBIG,
            Self::Locked => AbortCode::EAGAIN,
            Self::TooManyLocks => AbortCode::from_errno(ENOLCK),
            Self::StoppedSending => STOPPED_SENDING,
        };
        code.for_host(understands_uae)
    }
}

/// The code for an error of the store.
pub(crate) fn store_code(error: &Error) -> AbortCode {
    match error {
        Error::NoVolume(_) => AbortCode::VNOVOL,
        Error::VolumeExists(_) => AbortCode::VVOLEXISTS,
        Error::NoVnode(_) | Error::NotReserved(_) | Error::Changed(_) => AbortCode::VNOVNODE,
        Error::NotFound => AbortCode::ENOENT,
        // Historical: file servers say EEXIST where others say ENOTEMPTY.
        Error::Exists | Error::NotEmpty => AbortCode::EEXIST,
        Error::NotDirectory => AbortCode::ENOTDIR,
        Error::IsDirectory => AbortCode::EISDIR,
        Error::CrossDevice => AbortCode::EXDEV,
        Error::Loop => AbortCode::ELOOP,
        Error::Invalid(_) => AbortCode::EINVAL,
        Error::NameTooLong => AbortCode::ENAMETOOLONG,
        Error::TooManyLinks => AbortCode::EMLINK,
        Error::DirectoryFull | Error::FileTooBig => AbortCode::EFBIG,
        Error::OverQuota => AbortCode::VOVERQUOTA,
        Error::DiskFull => AbortCode::VDISKFULL,
        Error::ReadOnly => AbortCode::EROFS,
        // The caller retries. Work that could block was already tried on a thread that may block.
        // A wiped file is being recalled when its caller returns.
        Error::WouldBlock | Error::Busy(_) | Error::Stale(_) | Error::Archived(_) => {
            AbortCode::VBUSY
        }
        // This line covers three kinds of errors. The machine failed, or data is damaged (Io,
        // ObjectIo, Partition, Format). The partition takes no more changes after a failed write
        // (Stopped). The bytes are out of reach (InObjects of a server without object storage).
        //
        // Stock clients pass EIO on to their programs. A code of volumes (VSALVAGE, VOFFLINE) would
        // make them give up the whole volume for one damaged file; EROFS would hide the fault. A
        // new kind of error without a line here is a bug of this server.
        _ => AbortCode::EIO,
    }
}

/// The code with which the volume server refuses to create a volume. OpenAFS's code is EIO for
/// every reason, and callers then try another id. No other id helps on a full partition.
pub(crate) fn create_code(error: &Error) -> AbortCode {
    match error {
        Error::DiskFull => AbortCode::VDISKFULL,
        _ => AbortCode::EIO,
    }
}

/// The code with which the volume server ends a failed dump or delta.
pub(crate) fn dump_code(error: &Error) -> AbortCode {
    match error {
        // The reader of a dump sees that it ends early, and must learn that it is incomplete.
        Error::Io { .. } | Error::Partition(_) | Error::Format(_) => AbortCode::VOLSERDUMPERROR,
        other => store_code(other),
    }
}

/// The code with which the volume server refuses a restore. The volume is unchanged.
pub(crate) fn restore_code(error: &Error) -> AbortCode {
    match error {
        Error::WrongBase(_) => WRONG_BASE,
        // OpenAFS has one code for every fault of a dump.
        Error::Unsound(_)
        | Error::Invalid(_)
        | Error::NoVnode(_)
        | Error::NotDirectory
        | Error::IsDirectory
        | Error::FileTooBig
        | Error::TooManyLinks
        | Error::DirectoryFull
        | Error::NameTooLong => AbortCode::VOLSERREAD_DUMPERROR,
        Error::Busy(_) => AbortCode::VOLSERVOLBUSY,
        other => store_code(other),
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::Store(error)
    }
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Volume(error) => Self::Store(error),
            Failure::NoVolume => Self::NoVolume,
            Failure::Devices(code) => Self::Objects(code),
            Failure::Invalid => Self::Invalid,
            Failure::Busy => Self::Busy,
            Failure::Pinned => Self::Code(AbortCode::EBUSY),
            Failure::TooFewCopies => Self::Code(AbortCode::EAGAIN),
            Failure::OverLimit => Self::OverRecallLimit,
            Failure::NoGoodCopy => Self::Objects(AbortCode::EIO),
            Failure::NotKnownYet => Self::NotKnownYet,
            Failure::SourceEnded => Self::StoppedSending,
            Failure::Call(code) => Self::Call(code),
            Failure::Code(code) => Self::Code(code),
        }
    }
}

impl From<NotReady> for Refusal {
    fn from(cause: NotReady) -> Self {
        match cause {
            NotReady::Busy | NotReady::Gone => Self::Busy,
            NotReady::Silent => Self::HostSilent,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cellar_wire::ids::VolumeId;

    #[test]
    fn a_full_partition_has_its_own_code_when_a_volume_is_created() {
        assert_eq!(create_code(&Error::DiskFull), AbortCode::VDISKFULL);
        let exists = Error::VolumeExists(VolumeId(1));
        assert_eq!(create_code(&exists), AbortCode::EIO);
    }

    /// Every refusal, with its plain code and its code in the universal table, as clients know
    /// them.
    #[test]
    fn codes_are_those_that_clients_expect() {
        let same = [
            (Refusal::Store(Error::NoVnode(Fid::new(1, 2, 3))), 102),
            (Refusal::Store(Error::NoVolume(VolumeId(1))), 103),
            (Refusal::Store(Error::DiskFull), 108),
            (Refusal::Store(Error::OverQuota), 109),
            (Refusal::Store(Error::WouldBlock), 110),
            (Refusal::Store(Error::Busy(VolumeId(1))), 110),
            (Refusal::NoVolume, 103),
            (Refusal::Offline, 106),
            (Refusal::Busy, 110),
            (Refusal::NotKnownYet, 110),
            (Refusal::Moved, 103),
            (Refusal::HostSilent, -1),
            (Refusal::NoProtection, -1001),
            (Refusal::StoppedSending, -32),
            (Refusal::Call(AbortCode::RXGEN_SS_UNMARSHAL), -453),
        ];
        for (refusal, code) in same {
            assert_eq!(refusal.code(false).0, code, "{refusal:?}");
            assert_eq!(refusal.code(true).0, code, "{refusal:?}");
        }
        let translated = [
            (Refusal::Store(Error::NotFound), 2, 1),
            (Refusal::Store(Error::Exists), 17, 16),
            (Refusal::Store(Error::NotEmpty), 17, 16),
            (Refusal::Store(Error::NotDirectory), 20, 19),
            (Refusal::Store(Error::IsDirectory), 21, 20),
            (Refusal::Store(Error::CrossDevice), 18, 17),
            (Refusal::Store(Error::ReadOnly), 30, 29),
            (Refusal::Store(Error::Stopped("a sync failed".into())), 5, 4),
            (
                Refusal::Store(Error::Partition("a read failed".into())),
                5,
                4,
            ),
            (
                Refusal::Store(Error::Format("a record is damaged".into())),
                5,
                4,
            ),
            (Refusal::Store(Error::InObjects(Fid::new(1, 2, 3))), 5, 4),
            (Refusal::Objects(AbortCode::EIO), 5, 4),
            (Refusal::Store(Error::DirectoryFull), 27, 26),
            (Refusal::Store(Error::NameTooLong), 36, 35),
            (Refusal::Store(Error::Loop), 90, 39),
            (Refusal::NoRight, 13, 12),
            (Refusal::NotAdministrator, 1, 0),
            (Refusal::Invalid, 22, 21),
            (Refusal::Locked, 11, 10),
            (Refusal::TooManyLocks, 37, 36),
            (Refusal::NotSupported, 122, 93),
            (Refusal::NotRecalled, 123, 121),
            (Refusal::OverRecallLimit, 123, 121),
            (Refusal::ConnectionRefused, 130, 109),
        ];
        for (refusal, plain, place) in translated {
            assert_eq!(refusal.code(false).0, plain, "{refusal:?}");
            assert_eq!(refusal.code(true).0 - uae::BASE, place, "{refusal:?}");
        }
    }
    /// An I/O error is EIO everywhere, except for readers of dumps, which have their own code for
    /// it.
    #[test]
    fn faults_of_the_machine_are_eio() {
        let fid = Fid::new(1, 2, 3);
        let cause = || "a disk failed".to_owned();
        let read = [
            Error::Io {
                fid,
                cause: cause(),
            },
            Error::Partition(cause()),
            Error::Format(cause()),
        ];
        for error in &read {
            assert_eq!(store_code(error), AbortCode::EIO, "{error:?}");
            assert_eq!(restore_code(error), AbortCode::EIO, "{error:?}");
            assert_eq!(dump_code(error), AbortCode::VOLSERDUMPERROR, "{error:?}");
        }
        let stopped = Error::Stopped(cause());
        for code in [store_code, restore_code, dump_code] {
            assert_eq!(code(&stopped), AbortCode::EIO);
        }
    }
}
