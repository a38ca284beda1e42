//! Jumbograms: several DATA packets of one call in one datagram.
//!
//! ```text
//! header (seq s, serial r, flags|0x20) 1412 bytes  flags 0 checksum  1412 bytes  …  <= 1412 bytes
//! ```
//! Sub-packet k has sequence number s+k and serial r+k, its own flags and checksum. All but the
//! last carry exactly 1412 bytes. If a datagram is shorter than its flags announce, it counts as
//! one plain packet and the flag is ignored, as in OpenAFS. Source: rx-wire facts 2.10.

use super::header::{Flags, HEADER_SIZE, Header};

/// Payload of each sub-packet but the last.
pub const JUMBO_PAYLOAD: usize = 1412;
/// Distance between sub-packets: payload plus the small header.
pub const JUMBO_STRIDE: usize = JUMBO_PAYLOAD + 4;

/// One packet of a datagram: its header and the range of its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubPacket {
    /// Header with this packet's sequence number, serial, flags (JUMBO_PACKET cleared) and
    /// checksum.
    pub header: Header,
    /// Offset of the payload in the datagram.
    pub start: usize,
    /// End of the payload in the datagram.
    pub end: usize,
}

/// Iterator over the packets of a DATA datagram.
#[derive(Clone, Debug)]
pub struct JumboSplit<'a> {
    datagram: &'a [u8],
    header: Header,
    start: usize,
    done: bool,
}

impl<'a> JumboSplit<'a> {
    /// Creates the iterator; `header` must have been decoded from `datagram`.
    #[must_use]
    pub fn new(header: Header, datagram: &'a [u8]) -> Self {
        Self {
            datagram,
            header,
            start: HEADER_SIZE,
            done: datagram.len() < HEADER_SIZE,
        }
    }
}

impl Iterator for JumboSplit<'_> {
    type Item = SubPacket;

    fn next(&mut self) -> Option<SubPacket> {
        if self.done {
            return None;
        }
        let mut header = self.header;
        let start = self.start;
        let next = start + JUMBO_STRIDE;
        let announced =
            header.flags.has(Flags::JUMBO_PACKET) && !header.flags.has(Flags::LAST_PACKET);
        header.flags.0 &= !Flags::JUMBO_PACKET;
        let more = if announced && next <= self.datagram.len() {
            self.datagram.get(next - 4..next)
        } else {
            None
        };
        let Some(&[flags, _, c0, c1]) = more else {
            self.done = true;
            return Some(SubPacket {
                header,
                start,
                end: self.datagram.len(),
            });
        };
        self.start = next;
        self.header.seq = header.seq.wrapping_add(1);
        self.header.serial = header.serial.wrapping_add(1);
        let client = header.flags.0 & Flags::CLIENT_INITIATED;
        self.header.flags = Flags((flags & !Flags::CLIENT_INITIATED) | client);
        self.header.checksum = u16::from_be_bytes([c0, c1]);
        self.header.user_status = 0;
        Some(SubPacket {
            header,
            start,
            end: next - 4,
        })
    }
}
