//! Payload of an ACK, followed by the trailer and Cellar's extension.
//!
//! Layout: bufferSpace 2, maxSkew 2, firstPacket 4, previousPacket 4, serial 4, reason 1, nAcks 1,
//! nAcks bytes, 3 zero bytes, then up to four trailer words. Implementations differ in how much of
//! the trailer they write, so each word may be missing. After the four words stock peers send
//! nothing, or zero padding in MTU probes. A Cellar endpoint puts its extension there, marked by
//! [`Cellar::MAGIC`] (docs/protocol/rx-extensions.md). Source: rx-wire facts 2.1.

/// Most acknowledgement bytes in one ACK.
pub const MAX_ACKS: usize = 255;
/// Most words of ranges, or of the bitmap, in the extension of one ACK, which must fit into any
/// packet.
pub const MAX_EXTENSION_WORDS: usize = 256;

/// Bytes before the acknowledgement bytes.
const FIXED: usize = 18;
/// Zero bytes between them and the trailer.
const GAP: usize = 3;

/// Reason of an ACK. Unknown numbers are kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct AckReason(pub u8);

impl AckReason {
    /// A DATA packet requested it.
    pub const REQUESTED: Self = Self(1);
    /// A packet was received again.
    pub const DUPLICATE: Self = Self(2);
    /// A packet arrived while a predecessor is missing.
    pub const OUT_OF_SEQUENCE: Self = Self(3);
    /// A packet was beyond the window and was dropped.
    pub const EXCEEDS_WINDOW: Self = Self(4);
    /// A packet was dropped for lack of space.
    pub const NO_SPACE: Self = Self(5);
    /// Keep-alive, reachability check or MTU probe; requests an answer.
    pub const PING: Self = Self(6);
    /// Answer to an ACK with REQUEST_ACK.
    pub const PING_RESPONSE: Self = Self(7);
    /// A timer expired or the application consumed packets.
    pub const DELAY: Self = Self(8);
    /// Any other packet.
    pub const IDLE: Self = Self(9);
}

/// The four trailer words about sizes and windows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Trailer {
    /// Largest datagram accepted, header included.
    pub max_datagram: u32,
    /// Interface MTU minus IP and UDP headers.
    pub interface_mtu: Option<u32>,
    /// Receive window, packets.
    pub window: Option<u32>,
    /// Packets per jumbogram; 0 and 1: none.
    pub jumbo_max: Option<u32>,
}

/// Cellar's extension.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Cellar {
    /// Receive window of this call, packets.
    pub window: u32,
    /// Initial window of any new call on this connection, packets.
    pub initial_window: u16,
    /// Largest datagram that path MTU discovery may try.
    pub max_datagram: u16,
    /// Runs of received packets after those that the acknowledgement bytes cover: (distance of the
    /// first from firstPacket, length). Ascending, not adjacent.
    pub ranges: Vec<(u16, u16)>,
}

impl Cellar {
    /// First word of the extension: "CEL1".
    pub const MAGIC: u32 = 0x4345_4c31;
}

/// A decoded ACK.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ack<'a> {
    /// Lowest seq that the receiving application has not consumed.
    pub first_packet: u32,
    /// Last or highest sequence number received.
    pub previous_packet: u32,
    /// Serial of the packet that caused the ACK; 0: none.
    pub serial: u32,
    /// Reason.
    pub reason: AckReason,
    /// One byte for each packet from `first_packet` on; bit 0: received.
    pub acks: &'a [u8],
    /// The trailer, as far as present; `None` if it has no complete word.
    pub trailer: Option<Trailer>,
    /// The extension, if the peer is a Cellar endpoint.
    pub cellar: Option<Cellar>,
}

impl<'a> Ack<'a> {
    /// Decodes a payload. Returns `None` if it is shorter than the fixed 18 bytes. Missing
    /// acknowledgement bytes, trailer words and extension parts count as absent.
    #[must_use]
    pub fn decode(payload: &'a [u8]) -> Option<Self> {
        let fixed: &[u8; FIXED] = payload.first_chunk()?;
        #[expect(clippy::indexing_slicing, reason = "words at 4, 8 and 12 of 18 bytes")]
        let word = |at: usize| {
            u32::from_be_bytes([fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]])
        };
        let count = usize::from(fixed[17]);
        let rest = payload.get(FIXED..)?;
        let acks = rest.get(..count.min(rest.len()))?;
        let trailer_bytes = rest.get(count + GAP..).unwrap_or(&[]);
        let trailer_word = |i: usize| read_word(trailer_bytes, i);
        let trailer = trailer_word(0).map(|max_datagram| Trailer {
            max_datagram,
            interface_mtu: trailer_word(1),
            window: trailer_word(2),
            jumbo_max: trailer_word(3),
        });
        Some(Self {
            first_packet: word(4),
            previous_packet: word(8),
            serial: word(12),
            reason: AckReason(fixed[16]),
            acks,
            trailer,
            cellar: decode_cellar(trailer_bytes),
        })
    }

    /// Appends the payload to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let acks = self.acks.get(..MAX_ACKS).unwrap_or(self.acks);
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&self.first_packet.to_be_bytes());
        out.extend_from_slice(&self.previous_packet.to_be_bytes());
        out.extend_from_slice(&self.serial.to_be_bytes());
        out.extend_from_slice(&[self.reason.0, u8::try_from(acks.len()).unwrap_or(u8::MAX)]);
        out.extend_from_slice(acks);
        let Some(trailer) = self.trailer else { return };
        out.extend_from_slice(&[0; GAP]);
        out.extend_from_slice(&trailer.max_datagram.to_be_bytes());
        for word in [trailer.interface_mtu, trailer.window, trailer.jumbo_max] {
            let Some(word) = word else { return };
            out.extend_from_slice(&word.to_be_bytes());
        }
        if let Some(cellar) = &self.cellar {
            encode_cellar(cellar, out);
        }
    }
}

fn read_word(bytes: &[u8], index: usize) -> Option<u32> {
    let b: &[u8; 4] = bytes.get(index * 4..)?.first_chunk()?;
    Some(u32::from_be_bytes(*b))
}

fn decode_cellar(trailer: &[u8]) -> Option<Cellar> {
    if read_word(trailer, 4)? != Cellar::MAGIC {
        return None;
    }
    let window = read_word(trailer, 5)?;
    let sizes = read_word(trailer, 6)?;
    let count = read_word(trailer, 7)?;
    let (words, _) = trailer.get(32..).unwrap_or(&[]).as_chunks::<4>();
    let words = words.iter().map(|word| u32::from_be_bytes(*word));
    let length = (count & !BITMAP) as usize;
    let ranges = if length == 0 || length > MAX_EXTENSION_WORDS {
        Vec::new()
    } else if count & BITMAP != 0 {
        ranges_of_bitmap(words.take(length))
    } else {
        valid_ranges(words.take(length))
    };
    Some(Cellar {
        window,
        initial_window: (sizes >> 16) as u16,
        max_datagram: (sizes & 0xffff) as u16,
        ranges,
    })
}

/// Returns the ranges before the first one that is empty or does not ascend; the rest is ignored.
fn valid_ranges(words: impl Iterator<Item = u32>) -> Vec<(u16, u16)> {
    let mut end = 0;
    words
        .map_while(|word| {
            let (start, length) = (word >> 16, word & 0xffff);
            if start < end || length == 0 || start + length > 0x1_0000 {
                return None;
            }
            end = start + length;
            Some((start as u16, length as u16))
        })
        .collect()
}

fn ranges_of_bitmap(words: impl Iterator<Item = u32>) -> Vec<(u16, u16)> {
    let mut ranges: Vec<(u16, u16)> = Vec::new();
    let mut end = u16::MAX;
    for (i, word) in words.enumerate() {
        let mut left = word;
        while left != 0 {
            let bit = left.leading_zeros();
            left &= !(0x8000_0000 >> bit);
            let Ok(at) = u16::try_from(MAX_ACKS + i * 32 + bit as usize) else {
                return ranges;
            };
            match ranges.last_mut() {
                Some(last) if at == end => last.1 += 1,
                _ => ranges.push((at, 1)),
            }
            end = at + 1;
        }
    }
    ranges
}

fn encode_cellar(cellar: &Cellar, out: &mut Vec<u8>) {
    out.extend_from_slice(&Cellar::MAGIC.to_be_bytes());
    out.extend_from_slice(&cellar.window.to_be_bytes());
    out.extend_from_slice(&cellar.initial_window.to_be_bytes());
    out.extend_from_slice(&cellar.max_datagram.to_be_bytes());
    let reach = cellar
        .ranges
        .last()
        .map_or(0, |last| usize::from(last.0) + usize::from(last.1));
    let bitmap_words = reach
        .saturating_sub(MAX_ACKS)
        .div_ceil(32)
        .min(MAX_EXTENSION_WORDS);
    if bitmap_words >= cellar.ranges.len() {
        let ranges = cellar
            .ranges
            .get(..MAX_EXTENSION_WORDS)
            .unwrap_or(&cellar.ranges);
        out.extend_from_slice(&(ranges.len() as u32).to_be_bytes());
        for (start, length) in ranges {
            out.extend_from_slice(&start.to_be_bytes());
            out.extend_from_slice(&length.to_be_bytes());
        }
        return;
    }
    out.extend_from_slice(&(bitmap_words as u32 | BITMAP).to_be_bytes());
    let base = out.len();
    out.resize(base + bitmap_words * 4, 0);
    for &(start, length) in &cellar.ranges {
        let from = usize::from(start).saturating_sub(MAX_ACKS);
        for bit in from..from + usize::from(length) {
            if let Some(byte) = out.get_mut(base + bit / 8) {
                *byte |= 0x80 >> (bit % 8);
            }
        }
    }
}

/// Bit of the count word: a bitmap follows instead of ranges.
const BITMAP: u32 = 0x8000_0000;
