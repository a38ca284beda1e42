//! Reads a copy from its archive, and compares it with its record.

use bytes::Bytes;
use cellar_rpc::OutgoingCall;
use cellar_wire::AbortCode;
use cellar_wire::ids::Fid;
use cellar_wire::object::ArchiveCopy;
use cellar_wire::osd::{Read, ReadReply};

use super::super::failure::Failure;
use super::super::storage::Storage;
use super::copying::connection;
use super::sums::Sums;

/// The most bytes that are read from an archive at a time.
pub(super) const PIECE_BYTES: u64 = 1 << 20;

/// The reason why a copy could not be read.
pub(super) enum NotRead {
    /// The copy has other bytes than recorded.
    WrongBytes(&'static str),
    /// The archive, or a device, failed. Another attempt may succeed.
    Failed(Failure),
}

impl From<Failure> for NotRead {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl From<cellar_objects::Error> for NotRead {
    fn from(error: cellar_objects::Error) -> Self {
        Self::Failed(Failure::Devices(error.code()))
    }
}

/// Begins to read a copy of a file of `length` bytes, from `position` to its end.
///
/// # Errors
/// `WrongBytes`: the archive does not have the copy, or it has another length.
pub(super) async fn open(
    storage: &Storage,
    fid: Fid,
    copy: &ArchiveCopy,
    length: u64,
    position: u64,
) -> Result<OutgoingCall, NotRead> {
    let connection = connection(storage, copy.osd)?;
    let left = length.saturating_sub(position);
    let asked = Read {
        capability: storage.capability(copy.osd),
        object: copy.object(fid.vnode, fid.uniquifier),
        version: copy.version,
        position,
        length: left,
    };
    let opened = connection.open(&asked).await;
    let mut call = opened.map_err(|cause| of_copy(cause.code()))?;
    call.finish();
    let coming: u64 = call.read().await.map_err(|cause| of_copy(cause.code()))?;
    match (coming, copy.length) == (left, length) {
        true => Ok(call),
        false => Err(NotRead::WrongBytes("its length is not that of the file")),
    }
}

/// Reads a whole copy from a call that [`open`] began at its first byte. Each piece goes to `sink`.
/// The bytes count only if this function succeeds: the comparison is at the end.
///
/// # Errors
/// `WrongBytes`: the BLAKE3 differs. The errors of `sink`.
pub(super) async fn read_compared(
    mut call: OutgoingCall,
    copy: &ArchiveCopy,
    mut sink: impl AsyncFnMut(Bytes) -> Result<(), NotRead>,
) -> Result<(), NotRead> {
    let (mut sums, mut left) = (Sums::default(), copy.length);
    while left > 0 {
        let piece = call.read_some(left.min(PIECE_BYTES)).await;
        let piece = piece.map_err(|cause| of_copy(cause.code()))?;
        left -= piece.len() as u64;
        sums.add(piece.clone()).await;
        sink(piece).await?;
    }
    ended(call).await?;
    compare(sums, copy).await
}

/// Ends a call that has delivered all bytes of a copy.
///
/// # Errors
/// `WrongBytes`: the archive found an error in the bytes.
pub(super) async fn ended(call: OutgoingCall) -> Result<(), NotRead> {
    let ended = call.results::<ReadReply>().await;
    ended.map(drop).map_err(|cause| of_copy(cause.code()))
}

/// Compares the sums of all bytes of a copy with its record.
///
/// # Errors
/// `WrongBytes`: the BLAKE3 differs.
pub(super) async fn compare(sums: Sums, copy: &ArchiveCopy) -> Result<(), NotRead> {
    match sums.finish().await == (copy.length, copy.blake3) {
        true => Ok(()),
        false => Err(NotRead::WrongBytes("its BLAKE3 is not the recorded one")),
    }
}

/// The meaning of an archive's refusal to deliver a copy. A missing object and other bytes are a
/// bad copy; all else may be over soon.
pub(super) fn of_copy(code: AbortCode) -> NotRead {
    match code {
        AbortCode::ENOENT => NotRead::WrongBytes("the archive does not have it"),
        AbortCode::EBADMSG => NotRead::WrongBytes("the archive found other bytes"),
        code => NotRead::Failed(Failure::Devices(code)),
    }
}
