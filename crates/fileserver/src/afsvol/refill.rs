//! Refill: writes bytes back into the damaged places of a file. A call of this project.
//!
//! The caller streams the damaged places from a copy of the same version. The damaged places are
//! searched for again, and their bytes are taken from the stream as they pass. So only the present
//! chunk is kept. If a caller stops, the bytes written so far remain; each was verified by its
//! checksum.

use std::ops::Range;

use bytes::{Buf, Bytes, BytesMut};
use cellar_rpc::IncomingCall;
use cellar_wire::afsvol::{Refill, RefillReply, ScrubPlace};
use cellar_wire::serve::HandleStream;
use cellar_wire::{AbortCode, List};
use tokio::sync::mpsc;

use super::VolumeService;
use super::list::partition_of;
use super::{code, superuser};
use crate::audit;

/// Chunks that wait to be used.
const QUEUE: usize = 4;

/// The largest range that is written at a time: the bytes of a record of blocks.
const RANGE_MAX: u64 = 4 << 20;

impl HandleStream<Refill, IncomingCall> for VolumeService {
    async fn handle_stream(
        &self,
        call: &mut IncomingCall,
        arguments: Refill,
    ) -> Result<RefillReply, AbortCode> {
        let services = &self.services;
        let Refill {
            partition,
            fid,
            length,
            data_version,
            places,
        } = arguments;
        superuser(&services.sessions, call)?;
        audit::add_detail("partition", partition);
        audit::add_detail("fid", fid);
        let (_, partition) = partition_of(&services.volumes, partition)?;
        let (sender, chunks) = mpsc::channel(QUEUE);
        let work = cellar_rpc::blocking(move || {
            let volume = partition.volume(fid.volume).map_err(code)?;
            let volume = volume.ok_or(AbortCode::VNOVOL)?;
            let mut given = ArrivingBytes::new(places, chunks);
            let mut source = |range| Ok(given.bytes(range));
            let done = volume.refill(fid, length, data_version, &mut source);
            let done = done.map_err(code)?;
            done.durable.wait().map_err(code)?;
            Ok::<_, AbortCode>(RefillReply {
                restored: done.restored,
                from_here: done.from_here,
                missing: done.missing,
            })
        });
        let feed = async {
            let mut wanted = Some(sender);
            while let Some(bytes) = call.read_chunk().await? {
                if let Some(sender) = &wanted
                    && sender.send(bytes).await.is_err()
                {
                    // Everything possible is done; the rest of the stream is read and discarded.
                    wanted = None;
                }
            }
            Ok::<_, AbortCode>(())
        };
        let (fed, done) = tokio::join!(feed, work);
        fed?;
        done
    }
}

/// The bytes of some places of a file, as they arrive.
struct ArrivingBytes<const N: usize> {
    places: List<ScrubPlace, N>,
    chunks: mpsc::Receiver<Bytes>,
    /// The position of the next byte in the stream of all places.
    at: u64,
    /// The received bytes from that position on.
    chunk: Bytes,
}

impl<const N: usize> ArrivingBytes<N> {
    fn new(places: List<ScrubPlace, N>, chunks: mpsc::Receiver<Bytes>) -> Self {
        Self {
            places,
            chunks,
            at: 0,
            chunk: Bytes::new(),
        }
    }

    /// The bytes of a range within one of the places, unless they have already passed.
    fn bytes(&mut self, range: Range<u64>) -> Option<Bytes> {
        let skipped = self.position(&range)?.checked_sub(self.at)?;
        let length = range.end.checked_sub(range.start)?;
        if length > RANGE_MAX {
            return None;
        }
        self.take(skipped, |_| ())?;
        let mut bytes = BytesMut::with_capacity(length as usize);
        self.take(length, |piece| bytes.extend_from_slice(piece))?;
        Some(bytes.freeze())
    }

    /// The position in the stream at which a range begins.
    fn position(&self, range: &Range<u64>) -> Option<u64> {
        let mut before = 0u64;
        for place in self.places.iter() {
            let end = place.at.checked_add(place.length)?;
            if place.at <= range.start && range.end <= end {
                return before.checked_add(range.start - place.at);
            }
            before = before.checked_add(place.length)?;
        }
        None
    }

    /// Advances in the stream. `None` at its end.
    fn take(&mut self, mut count: u64, mut sink: impl FnMut(&[u8])) -> Option<()> {
        while count > 0 {
            if self.chunk.is_empty() {
                self.chunk = self.chunks.blocking_recv()?;
            }
            let piece = self
                .chunk
                .len()
                .min(usize::try_from(count).unwrap_or(usize::MAX));
            sink(&self.chunk[..piece]);
            self.chunk.advance(piece);
            self.at += piece as u64;
            count -= piece as u64;
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_cut_out_of_the_stream_of_places() {
        let place = |at, length| ScrubPlace { at, length };
        let places: List<ScrubPlace, 8> =
            List::from_iter_cut([place(100, 10), place(200, 20), place(u64::MAX, 9)]);
        let (sender, chunks) = mpsc::channel(100);
        for piece in (0..30).collect::<Vec<u8>>().chunks(7) {
            sender.try_send(Bytes::copy_from_slice(piece)).unwrap();
        }
        drop(sender);
        let mut given = ArrivingBytes::new(places, chunks);
        assert_eq!(given.bytes(90..101), None, "not in a place");
        assert_eq!(given.bytes(102..105).unwrap()[..], [2, 3, 4]);
        assert_eq!(given.bytes(104..105), None, "gone by");
        assert_eq!(given.bytes(105..200), None);
        assert_eq!(given.bytes(200..203).unwrap()[..], [10, 11, 12]);
        assert_eq!(given.bytes(219..220).unwrap()[..], [29]);
        assert_eq!(given.bytes(u64::MAX - 1..u64::MAX), None);
    }
}
