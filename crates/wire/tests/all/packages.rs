//! Builds every message of every package without naming any: a procedure is tested as soon as it is
//! declared.
//!
//! Messages are decoded from random words. Most of the words are small, so that counts and lengths
//! are plausible. The encoding of a decoded message is its canonical form.

use bytes::Bytes;
use cellar_wire::{
    AnyRequest, Decoder, Package, ProcedureInfo, RequestError, afsosd, afsvol, bozo, disk, osd,
    osddb, pr, rxafs, rxafscb, rxperf, rxstats, vl, vote,
};

use crate::seeded::Random;

/// A message that was decoded from some bytes.
pub(crate) struct Decoded {
    /// The canonical form.
    pub(crate) canonical: Bytes,
    /// Its text in traces; empty for results.
    pub(crate) debug: String,
}

/// One direction of one procedure.
pub(crate) struct Message {
    pub(crate) package: &'static Package,
    pub(crate) procedure: &'static ProcedureInfo,
    pub(crate) is_reply: bool,
    decode: fn(u32, &[u8]) -> Result<Decoded, RequestError>,
}

impl Message {
    pub(crate) fn decode(&self, bytes: &[u8]) -> Result<Decoded, RequestError> {
        (self.decode)(self.procedure.opcode, bytes)
    }

    pub(crate) fn name(&self) -> String {
        let direction = if self.is_reply {
            "results"
        } else {
            "arguments"
        };
        format!(
            "{direction} of {}_{}",
            self.package.name, self.procedure.name
        )
    }

    /// Returns up to `wanted` different canonical forms.
    pub(crate) fn samples(&self, random: &mut Random, wanted: usize) -> Vec<Bytes> {
        let mut samples = Vec::new();
        for turn in 0..4000 * wanted {
            let mut words: Vec<u32> = (0..3000).map(|_| plausible_word(random)).collect();
            if turn >= 400 * wanted {
                // Random words practically never form a layout, so one is inserted somewhere among
                // the first words.
                let at = random.below(40) as usize;
                words.splice(at..at, LAYOUT);
            }
            let bytes: Vec<u8> = words.into_iter().flat_map(u32::to_be_bytes).collect();
            if let Ok(decoded) = self.decode(&bytes) {
                samples.push(decoded.canonical);
                if samples.len() == wanted {
                    break;
                }
            }
        }
        samples
    }
}

/// A layout of two stripes. Its unit is a power of two, and it has as many objects as its shape
/// needs.
const LAYOUT: [u32; 19] = [1, 2, 1, 4096, 0, 7, 2, 5, 2, 3, 1, 0, 6, 0, 4, 2, 0, 7, 1];

fn plausible_word(random: &mut Random) -> u32 {
    match random.below(40) {
        0..10 => 0,
        10..32 => 1 + random.below(3) as u32,
        32..36 => u32::from(b'a') + random.below(26) as u32,
        36 => 28,
        37 => 0x2000_0001,
        _ => random.draw() as u32,
    }
}

fn decode_request<R: AnyRequest>(opcode: u32, bytes: &[u8]) -> Result<Decoded, RequestError> {
    let request = R::decode(opcode, &mut Decoder::new(bytes))?;
    assert_eq!(request.procedure().opcode, opcode);
    let encoded = request.to_xdr();
    assert_eq!(encoded[..4], opcode.to_be_bytes());
    Ok(Decoded {
        canonical: encoded.slice(4..),
        debug: format!("{request:?}"),
    })
}

fn decode_reply<R: AnyRequest>(opcode: u32, bytes: &[u8]) -> Result<Decoded, RequestError> {
    let canonical = R::recode_reply(opcode, &mut Decoder::new(bytes))?;
    Ok(Decoded {
        canonical,
        debug: String::new(),
    })
}

fn messages_of<R: AnyRequest>() -> impl Iterator<Item = Message> {
    let package = R::package();
    package.procedures.iter().flat_map(move |procedure| {
        [
            Message {
                package,
                procedure,
                is_reply: false,
                decode: decode_request::<R>,
            },
            Message {
                package,
                procedure,
                is_reply: true,
                decode: decode_reply::<R>,
            },
        ]
    })
}

/// Both directions of every procedure of every package.
pub(crate) fn all_messages() -> Vec<Message> {
    messages_of::<rxafs::Request>()
        .chain(messages_of::<rxafscb::Request>())
        .chain(messages_of::<vl::Request>())
        .chain(messages_of::<pr::Request>())
        .chain(messages_of::<afsvol::Request>())
        .chain(messages_of::<bozo::Request>())
        .chain(messages_of::<vote::Request>())
        .chain(messages_of::<disk::Request>())
        .chain(messages_of::<rxstats::Request>())
        .chain(messages_of::<rxperf::Request>())
        .chain(messages_of::<osd::Request>())
        .chain(messages_of::<osddb::Request>())
        .chain(messages_of::<afsosd::Request>())
        .collect()
}
