//! Write and Truncate: bytes into a version that is being made.
//!
//! The store gets a piece, on a thread that may wait for the disk, while the next one arrives.
//! Memory is bounded by two pieces for each call. Data from a client that goes away stays in the
//! version, which no layout names.

use bytes::Bytes;
use cellar_auth::capability::Act;
use cellar_rpc::{IncomingCall, blocking};
use cellar_volume::objects::ObjectWriter;
use cellar_wire::AbortCode;
use cellar_wire::osd::{Truncate, TruncateReply, Write, WriteReply};
use cellar_wire::serve::{Handle, HandleStream};
use tokio::time::timeout;

use crate::limits::{AT_ONCE_BYTES, SMALL_BYTES, WRITE_PATIENCE, WRITE_PIECE_BYTES};
use crate::refusal::Refusal;
use crate::service::{OsdService, on_disk};
use crate::statistics::add;

impl HandleStream<Write, IncomingCall> for OsdService {
    async fn handle_stream(
        &self,
        call: &mut IncomingCall,
        arguments: Write,
    ) -> Result<WriteReply, Refusal> {
        let server = &self.0;
        let Write {
            ref capability,
            object,
            base,
            version,
            position,
            length,
        } = arguments;
        let end = position.checked_add(length).ok_or(Refusal::Invalid)?;
        let act = Act::Write {
            base,
            version,
            begin: position,
            end,
        };
        let device = server.admit(call, capability, object, act)?;
        if let Some(archive) = device.archive() {
            let client = call.peer().address.ip();
            let _stream = server.streams.begin(client).ok_or(Refusal::Busy)?;
            let written = archive.write(call, &arguments, server.now()).await?;
            add(&server.statistics.bytes_written, length);
            return Ok(written);
        }
        let mut left = length;
        let store = device.disk()?;
        let stream = match length > SMALL_BYTES {
            true => {
                let client = call.peer().address.ip();
                Some(server.streams.begin(client).ok_or(Refusal::Busy)?)
            }
            false => None,
        };
        let ticket = if length <= AT_ONCE_BYTES {
            let data = gather(call, &mut left, length).await?;
            on_disk(move || store.write(object, base, version, position, &data)).await?
        } else {
            let writer =
                on_disk(move || store.writer(object, base, version, position, length)).await?;
            let writer = receive_into(call, left, writer).await?;
            on_disk(move || writer.finish()).await?
        };
        drop(stream);
        ticket.await?;
        add(&server.statistics.bytes_written, length);
        Ok(WriteReply { length })
    }
}

impl Handle<Truncate, IncomingCall> for OsdService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: Truncate,
    ) -> Result<TruncateReply, Refusal> {
        let server = &self.0;
        let Truncate {
            capability,
            object,
            base,
            version,
            length,
        } = arguments;
        let act = Act::Write {
            base,
            version,
            begin: length,
            end: length,
        };
        let device = server.admit(call, &capability, object, act)?;
        let store = device.disk()?;
        let ticket = on_disk(move || store.truncate(object, base, version, length)).await?;
        ticket.await?;
        Ok(TruncateReply {})
    }
}

/// Reads at least `wanted` of the announced bytes, of which `left` are still to come.
pub(crate) async fn gather(
    call: &mut IncomingCall,
    left: &mut u64,
    wanted: u64,
) -> Result<Vec<Bytes>, Refusal> {
    match timeout(WRITE_PATIENCE, call.gather(left, wanted)).await {
        Ok(Ok(pieces)) => Ok(pieces),
        Ok(Err(AbortCode::RX_CALL_DEAD)) | Err(_) => Err(Refusal::StoppedSending),
        Ok(Err(code)) => Err(Refusal::Call(code)),
    }
}

/// Passes all data to `writer`.
async fn receive_into(
    call: &mut IncomingCall,
    mut left: u64,
    mut writer: ObjectWriter,
) -> Result<ObjectWriter, Refusal> {
    let mut pieces = gather(call, &mut left, WRITE_PIECE_BYTES).await?;
    while left > 0 {
        let next = gather(call, &mut left, WRITE_PIECE_BYTES);
        // An error of the store is reported at once, since more data may take long to arrive.
        (pieces, writer) = tokio::try_join!(next, push(writer, pieces))?;
    }
    push(writer, pieces).await
}

/// Passes bytes to the store.
pub(crate) async fn push(
    mut writer: ObjectWriter,
    pieces: Vec<Bytes>,
) -> Result<ObjectWriter, Refusal> {
    blocking(move || {
        for piece in pieces {
            writer.push(piece)?;
        }
        Ok(writer)
    })
    .await
}
