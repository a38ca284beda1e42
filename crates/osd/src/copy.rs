//! Copy: fetches an object from another device with several calls at a time.
//!
//! Four lanes take ranges in order. Each makes a call to the other server and has a writer of the
//! new version here. The store thus gets whole pieces and no lane waits for another. Zeros at the
//! start of a range are not written, so a hole remains a hole.

use std::cell::Cell;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use bytes::Bytes;
use cellar_rpc::{CallError, Connection, ConnectionOptions, IncomingCall, Security};
use cellar_volume::Ticket;
use cellar_wire::osd::{self, Copy, CopyReply, Examine, Read, ReadReply};
use cellar_wire::serve::Handle;

use crate::device::Device;
use crate::limits::{COPY_RANGE_BYTES, STREAM_PATIENCE, WRITE_PIECE_BYTES};
use crate::refusal::Refusal;
use crate::server::Server;
use crate::service::{OsdService, on_disk};
use crate::statistics::add;
use crate::write::push;

/// Source and destination of a copy.
struct Job<'c> {
    arguments: &'c Copy,
    source: Connection,
    device: Arc<Device>,
    length: u64,
    /// The first byte that no lane has taken.
    next: Cell<u64>,
}

impl Handle<Copy, IncomingCall> for OsdService {
    async fn handle(&self, call: &IncomingCall, arguments: Copy) -> Result<CopyReply, Refusal> {
        let server = &self.0;

        let (object, version) = (arguments.object, arguments.version);
        // Only for servers of the cell, since this server calls the address that they name.
        let device = server.admit_all(call, &arguments.capability)?;
        let client = call.peer().address.ip();
        let _stream = server.streams.begin(client).ok_or(Refusal::Busy)?;
        let source = server.other_server(call, &arguments)?;
        let asked = Examine {
            capability: arguments.source_capability.clone(),
            object: arguments.source,
        };
        let info = source.call(&asked).await.map_err(failed)?.info;
        let mut versions = info.versions.iter();
        let known = versions.find(|known| known.version == arguments.source_version);
        let length = known
            .ok_or(Refusal::Call(cellar_wire::AbortCode::ENOENT))?
            .length;
        let store = device.disk()?;
        // Data of an earlier attempt does not belong to this copy.
        let made = on_disk(move || store.truncate(object, 0, version, 0)).await?;
        let job = Job {
            arguments: &arguments,
            source,
            device: device.clone(),
            length,
            next: Cell::new(0),
        };
        tokio::try_join!(
            job.copy_ranges(),
            job.copy_ranges(),
            job.copy_ranges(),
            job.copy_ranges()
        )?;
        made.await?;
        // The object may end with a hole.
        let store = device.disk()?;
        let ended = on_disk(move || store.truncate(object, 0, version, length)).await?;
        ended.await?;
        add(&server.statistics.bytes_copied, length);
        Ok(CopyReply { length })
    }
}

impl Server {
    fn other_server(&self, call: &IncomingCall, copy: &Copy) -> Result<Connection, Refusal> {
        let bits = copy
            .host
            .iter()
            .fold(0, |bits, word| bits << 32 | u128::from(*word));
        let address = Ipv6Addr::from_bits(bits);
        let address = address
            .to_ipv4_mapped()
            .map_or(IpAddr::V6(address), IpAddr::V4);
        let number = u16::try_from(copy.port).map_err(|_| Refusal::Invalid)?;
        let port = call.port().or_else(|| self.port.get());
        let port = port.ok_or(Refusal::Invalid)?;
        let service = osd::PACKAGE.service_id;
        // A source that stops sending must not occupy a stream here.
        let options = ConnectionOptions {
            idle_dead_time: Some(STREAM_PATIENCE),
            ..ConnectionOptions::default()
        };
        let address = SocketAddr::new(address, number);
        Ok(port.connect_with(address, service, Security::null(), options))
    }
}

impl Job<'_> {
    /// Copies one range after another, and waits until the last one is durable.
    async fn copy_ranges(&self) -> Result<(), Refusal> {
        let mut durable = Ticket::ready();
        loop {
            let begin = self.next.get();
            let length = (self.length - begin).min(COPY_RANGE_BYTES);
            if length == 0 {
                return Ok(durable.await?);
            }
            self.next.set(begin + length);
            durable = self.range(begin, length).await?;
        }
    }

    async fn range(&self, position: u64, length: u64) -> Result<Ticket, Refusal> {
        let Copy {
            object,
            version,
            source,
            source_version,
            ref source_capability,
            ..
        } = *self.arguments;
        let asked = Read {
            capability: source_capability.clone(),
            object: source,
            version: source_version,
            position,
            length,
        };
        let mut reading = self.source.open(&asked).await.map_err(failed)?;
        let coming: u64 = reading.read().await.map_err(failed)?;
        if coming != length {
            // The version was replaced during the copy, so it was not finished.
            return Err(Refusal::Call(cellar_wire::AbortCode::ESTALE));
        }
        let (mut writer, mut left) = (None, length);
        while left > 0 {
            let at = length - left;
            let (mut pieces, mut gathered) = (Vec::new(), 0);
            while left > 0 && gathered < WRITE_PIECE_BYTES {
                let piece = reading.read_some(left).await.map_err(failed)?;
                left -= piece.len() as u64;
                gathered += piece.len() as u64;
                pieces.push(piece);
            }
            let begun = match writer.take() {
                Some(writer) => writer,
                // Bytes that are not written read as zeros.
                None if pieces.iter().all(is_zero) => continue,
                None => {
                    let store = self.device.disk()?;
                    let (position, length) = (position + at, length - at);
                    on_disk(move || store.writer(object, 0, version, position, length)).await?
                }
            };
            writer = Some(push(begun, pieces).await?);
        }
        reading.results::<ReadReply>().await.map_err(failed)?;
        match writer {
            Some(writer) => on_disk(move || writer.finish()).await,
            None => Ok(Ticket::ready()),
        }
    }
}

fn is_zero(piece: &Bytes) -> bool {
    static ZEROS: [u8; 4096] = [0; 4096];
    let mut blocks = piece.chunks(ZEROS.len());
    blocks.all(|block| *block == ZEROS[..block.len()])
}

fn failed(failure: CallError) -> Refusal {
    Refusal::Call(failure.code())
}
