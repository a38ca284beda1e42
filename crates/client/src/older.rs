//! Older bytes of a file, which archives keep, as the new contents of a file.
//!
//! 1. The bytes pass through this client: ReadOlder delivers them, and one `StoreData64` takes
//!    them. So the file changes at once with the last byte, or not at all.
//! 2. The last bytes are stored after the file server has compared all of them with the BLAKE3 of
//!    the copy.
//! 3. If either call fails and another server may help, both begin again.

use bytes::Bytes;
use cellar_rpc::{CallError, OutgoingCall};
use cellar_wire::DecodeError;
use cellar_wire::afsosd::{self, ReadOlder, ReadOlderReply};
use cellar_wire::ids::{AfsTime, Fid};
use cellar_wire::rxafs::{AfsFetchStatus, AfsStoreStatus, StoreData64, StoreData64Reply};

use crate::client::Client;
use crate::error::Result;
use crate::operation::VolumeOperation;
use crate::path::Node;

/// The most bytes that are read before they are stored.
const PIECE_BYTES: u64 = 1 << 20;

/// Bytes that archives keep.
#[derive(Clone, Copy, Debug)]
pub struct OlderBytes {
    /// The file, or the removed file.
    pub fid: Fid,
    /// The volume of their name ([`afsosd::OlderVersion::volume`]).
    pub volume: u32,
    /// The version of their name ([`afsosd::OlderVersion::version`]).
    pub version: u64,
    /// Their number.
    pub length: u64,
}

/// The call that failed.
enum Failed {
    Reading(CallError),
    Storing(CallError),
}

impl Client {
    /// Replaces the contents of the file `to` by older bytes of a file of the volume that `from` is
    /// in. Calls `progress` with the number of bytes that were sent; after a failure it begins with
    /// 0 again. Errors of the source say `source`, those of the store say `what`.
    ///
    /// # Errors
    /// No archive delivers the bytes, or no server takes them. Then the file is unchanged.
    pub async fn store_older(
        &self,
        (from, older, source): (&Node, &OlderBytes, &str),
        (to, what): (&Node, &str),
        modified: Option<AfsTime>,
        mut progress: impl FnMut(u64),
    ) -> Result<AfsFetchStatus> {
        let package = &afsosd::PACKAGE;
        let mut reading = VolumeOperation::start_with(package, self, &from.volume).await?;
        let mut storing = VolumeOperation::start(self, &to.volume).await?;
        let store = StoreData64 {
            fid: to.fid,
            in_status: AfsStoreStatus {
                client_mod_time: modified,
                ..AfsStoreStatus::default()
            },
            position: 0,
            length: older.length,
            file_length: older.length,
        };
        loop {
            progress(0);
            match attempt(&reading, older, &storing, &store, &mut progress).await {
                Ok(reply) => {
                    reading.succeeded();
                    storing.succeeded();
                    return Ok(reply.status);
                }
                Err(Failed::Reading(error)) => reading.failed(error, &source).await?,
                Err(Failed::Storing(error)) => storing.failed(error, &what).await?,
            }
        }
    }
}

async fn attempt(
    reading: &VolumeOperation<'_>,
    older: &OlderBytes,
    storing: &VolumeOperation<'_>,
    store: &StoreData64,
    progress: &mut impl FnMut(u64),
) -> std::result::Result<StoreData64Reply, Failed> {
    let mut source = Source::open(reading, older)
        .await
        .map_err(Failed::Reading)?;
    // The store begins when the archive delivers.
    let mut piece = source.next().await.map_err(Failed::Reading)?;
    let opened = storing.connection().open(store).await;
    let mut call = opened.map_err(Failed::Storing)?;
    let mut sent = 0;
    while !piece.is_empty() {
        // The end of the source is known before its last piece is stored.
        let next = source.next().await.map_err(Failed::Reading)?;
        let length = piece.len() as u64;
        match call.write(piece).await {
            Ok(()) => {}
            // The server has answered already; its answer has the reason.
            Err(CallError::AnsweredEarly) => break,
            Err(error) => return Err(Failed::Storing(error)),
        }
        sent += length;
        progress(sent);
        piece = next;
    }
    call.finish();
    call.read().await.map_err(Failed::Storing)
}

/// A ReadOlder in progress.
struct Source {
    /// `None`: all bytes were read and compared.
    call: Option<OutgoingCall>,
    left: u64,
}

impl Source {
    async fn open(
        reading: &VolumeOperation<'_>,
        older: &OlderBytes,
    ) -> std::result::Result<Self, CallError> {
        let asked = ReadOlder {
            fid: older.fid,
            volume: older.volume,
            version: older.version,
        };
        let mut call = reading.connection().open(&asked).await?;
        call.finish();
        let left: u64 = call.read().await?;
        match left == older.length {
            true => Ok(Self {
                call: Some(call),
                left,
            }),
            false => Err(CallError::BadReply(DecodeError::Invalid(
                "another length than was listed",
            ))),
        }
    }

    /// The next bytes. None at the end. The last ones come after the server has compared all.
    async fn next(&mut self) -> std::result::Result<Bytes, CallError> {
        let Some(call) = &mut self.call else {
            return Ok(Bytes::new());
        };
        let mut piece = Bytes::new();
        while piece.is_empty() && self.left > 0 {
            piece = call.read_some(self.left.min(PIECE_BYTES)).await?;
            self.left -= piece.len() as u64;
        }
        if self.left == 0
            && let Some(call) = self.call.take()
        {
            call.results::<ReadOlderReply>().await?;
        }
        Ok(piece)
    }
}
