//! Read: bytes of a version, as they come from the store.
//!
//! Every block is checked before its bytes leave; a damaged one ends the call with EIO in the middle.
//! A slow client holds its own call: pieces are read only when there is room for them.

use std::sync::Arc;

use bytes::Bytes;
use cellar_auth::capability::Act;
use cellar_rpc::IncomingCall;
use cellar_volume::objects::ObjectReader;
use cellar_volume::{Error, nonblocking};
use cellar_wire::osd::{Read, ReadReply};
use tokio::time::timeout;

use crate::limits::{READ_PIECE_BYTES, SMALL_BYTES, STREAM_PATIENCE};
use crate::refusal::Refusal;
use crate::server::Server;
use crate::service::{Answered, on_disk};
use crate::statistics::add;

impl Server {
    pub(crate) async fn read(self: &Arc<Self>, call: &mut IncomingCall) -> Answered {
        let Read {
            capability,
            object,
            version,
            position,
            length,
        } = call.arguments().await?;
        let act = Act::Read {
            version,
            begin: position,
            end: position.saturating_add(length),
        };
        let device = self.admit(call, &capability, object, act)?;
        let _stream = match length > SMALL_BYTES {
            true => {
                let client = call.peer().address.ip();
                Some(self.streams.begin(client).ok_or(Refusal::Busy)?)
            }
            false => None,
        };
        let store = device.store.clone();
        let begin = move || store.reader(object, version, position, length);
        let mut reader = match nonblocking(&begin) {
            Err(Error::WouldBlock) => on_disk(begin).await?,
            begun => begun?,
        };
        let length = reader.left();
        call.reply(&length);
        while reader.left() > 0 {
            let piece;
            (reader, piece) = next(reader).await?;
            if length <= SMALL_BYTES {
                call.append(&piece);
            } else {
                let sent = timeout(STREAM_PATIENCE, call.write(piece)).await;
                sent.map_err(|_| Refusal::StoppedSending)??;
            }
        }
        add(&self.statistics.bytes_read, length);
        call.reply(&ReadReply {});
        Ok(())
    }
}

/// The next piece of what is left, here if it needs not wait for the disk.
pub(crate) async fn next(mut reader: ObjectReader) -> Result<(ObjectReader, Bytes), Refusal> {
    let piece = match nonblocking(|| reader.next(READ_PIECE_BYTES)) {
        Err(Error::WouldBlock) => {
            let (back, piece) = cellar_rpc::blocking(move || {
                let piece = reader.next(READ_PIECE_BYTES);
                (reader, piece)
            })
            .await;
            reader = back;
            piece
        }
        piece => piece,
    };
    Ok((reader, piece?.unwrap_or_default()))
}
