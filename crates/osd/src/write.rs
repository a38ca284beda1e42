//! Write and Truncate: bytes into a version that is being made.
//!
//! A piece is taken to the store, on a thread that may wait for the disk, while the next one comes in:
//! memory is bounded by two pieces for each call. What a client that goes away has sent stays in the
//! version, which nothing names.

use std::sync::Arc;

use bytes::Bytes;
use cellar_auth::capability::Act;
use cellar_rpc::{IncomingCall, blocking};
use cellar_volume::objects::ObjectWriter;
use cellar_wire::osd::{Truncate, TruncateReply, Write, WriteReply};
use tokio::time::timeout;

use crate::limits::{SMALL_BYTES, STREAM_PATIENCE, WRITE_PIECE_BYTES};
use crate::refusal::Refusal;
use crate::server::Server;
use crate::service::{Answered, on_disk};
use crate::statistics::add;

impl Server {
    pub(crate) async fn write(self: &Arc<Self>, call: &mut IncomingCall) -> Answered {
        let Write {
            capability,
            object,
            base,
            version,
            position,
            length,
        } = call.arguments().await?;
        let end = position.checked_add(length).ok_or(Refusal::Invalid)?;
        let act = Act::Write {
            base,
            version,
            begin: position,
            end,
        };
        let device = self.admit(call, &capability, object, act)?;
        let mut incoming = Incoming { left: length };
        let store = device.store.clone();
        let ticket = if length <= SMALL_BYTES {
            let data = incoming.gather(call, length).await?;
            on_disk(move || store.write(object, base, version, position, &data)).await?
        } else {
            let client = call.peer().address.ip();
            let _stream = self.streams.begin(client).ok_or(Refusal::Busy)?;
            let writer =
                on_disk(move || store.writer(object, base, version, position, length)).await?;
            let writer = incoming.bring(call, writer).await?;
            on_disk(move || writer.finish()).await?
        };
        ticket.await?;
        add(&self.statistics.bytes_written, length);
        call.reply(&WriteReply { length });
        Ok(())
    }

    pub(crate) async fn truncate(self: &Arc<Self>, call: &mut IncomingCall) -> Answered {
        let Truncate {
            capability,
            object,
            base,
            version,
            length,
        } = call.arguments().await?;
        let act = Act::Write {
            base,
            version,
            begin: length,
            end: length,
        };
        let device = self.admit(call, &capability, object, act)?;
        let store = device.store.clone();
        let ticket = on_disk(move || store.truncate(object, base, version, length)).await?;
        ticket.await?;
        call.reply(&TruncateReply {});
        Ok(())
    }
}

/// The bytes that a client announced.
struct Incoming {
    left: u64,
}

impl Incoming {
    /// At least `wanted` bytes in pieces as they came, or what is left.
    async fn gather(
        &mut self,
        call: &mut IncomingCall,
        wanted: u64,
    ) -> Result<Vec<Bytes>, Refusal> {
        let (mut pieces, mut gathered) = (Vec::new(), 0);
        while self.left > 0 && gathered < wanted {
            let chunk = timeout(STREAM_PATIENCE, call.read_chunk()).await;
            let chunk = chunk.map_err(|_| Refusal::StoppedSending)??;
            let mut chunk = chunk.ok_or(Refusal::StoppedSending)?;
            // More than was announced is not ours to read.
            chunk.truncate(usize::try_from(self.left).unwrap_or(usize::MAX));
            self.left -= chunk.len() as u64;
            gathered += chunk.len() as u64;
            if !chunk.is_empty() {
                pieces.push(chunk);
            }
        }
        Ok(pieces)
    }

    /// Takes all that comes to `writer`.
    async fn bring(
        &mut self,
        call: &mut IncomingCall,
        mut writer: ObjectWriter,
    ) -> Result<ObjectWriter, Refusal> {
        let mut pieces = self.gather(call, WRITE_PIECE_BYTES).await?;
        while self.left > 0 {
            let next = self.gather(call, WRITE_PIECE_BYTES);
            let (next, pushed) = tokio::join!(next, push(writer, pieces));
            writer = pushed?;
            pieces = next?;
        }
        push(writer, pieces).await
    }
}

/// Takes bytes to the store.
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
