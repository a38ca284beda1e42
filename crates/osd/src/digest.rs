//! Sums of the bytes of a version: Checksum and Digest.

use cellar_auth::capability::Act;
use cellar_rpc::IncomingCall;
use cellar_volume::objects::ObjectReader;
use cellar_wire::object::{Capability, ObjectId};
use cellar_wire::osd::{
    Checksum, ChecksumReply, Digest, DigestReply, SUM_CRC32C, SUM_MD5, SUM_SHA256, digest_words,
};
use cellar_wire::serve::Handle;
use md5::Md5;
use sha2::{Digest as _, Sha256};

use crate::limits::READ_PIECE_BYTES;
use crate::refusal::Refusal;
use crate::service::{OsdService, on_disk};

/// The act of reading all bytes of a version up to `end`.
fn act(version: u64, end: u64) -> Act {
    Act::Read {
        version,
        begin: 0,
        end,
    }
}

impl Handle<Checksum, IncomingCall> for OsdService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: Checksum,
    ) -> Result<ChecksumReply, Refusal> {
        let Checksum {
            ref capability,
            object,
            version,
            sums,
        } = arguments;
        let device = self.0.admit(call, capability, object, act(version, 0))?;
        if let Some(archive) = device.archive() {
            return archive.checksum(&arguments).await;
        }
        let wanted = Sums {
            crc32c: (sums & SUM_CRC32C != 0).then_some(0),
            sha256: (sums & SUM_SHA256 != 0).then(Sha256::new),
            md5: (sums & SUM_MD5 != 0).then(Md5::new),
            blake3: None,
        };
        let (length, sums) = self.sum(call, capability, object, version, wanted).await?;
        let sha256 = sums.sha256.map(|sum| digest_words(&sum.finalize()));
        let md5 = sums.md5.map(|sum| digest_words(&sum.finalize()));
        Ok(ChecksumReply {
            length,
            crc32c: sums.crc32c.unwrap_or_default(),
            sha256: sha256.unwrap_or_default(),
            md5: md5.unwrap_or_default(),
        })
    }
}

impl Handle<Digest, IncomingCall> for OsdService {
    async fn handle(&self, call: &IncomingCall, arguments: Digest) -> Result<DigestReply, Refusal> {
        let Digest {
            ref capability,
            object,
            version,
        } = arguments;
        let device = self.0.admit(call, capability, object, act(version, 0))?;
        if let Some(archive) = device.archive() {
            return archive.digest(object, version).await;
        }
        let wanted = Sums {
            md5: Some(Md5::new()),
            blake3: Some(Box::default()),
            ..Sums::default()
        };
        let (length, sums) = self.sum(call, capability, object, version, wanted).await?;
        let blake3 = sums
            .blake3
            .map(|sum| digest_words(sum.finalize().as_bytes()));
        let md5 = sums.md5.map(|sum| digest_words(&sum.finalize()));
        Ok(DigestReply {
            length,
            blake3: blake3.unwrap_or_default(),
            md5: md5.unwrap_or_default(),
        })
    }
}

impl OsdService {
    /// Reads a version of a device on a disk. Returns its length and its sums.
    async fn sum(
        &self,
        call: &IncomingCall,
        capability: &Capability,
        object: ObjectId,
        version: u64,
        wanted: Sums,
    ) -> Result<(u64, Sums), Refusal> {
        let server = &self.0;
        let device = server.admit(call, capability, object, act(version, 0))?;
        let client = call.peer().address.ip();
        let _stream = server.streams.begin(client).ok_or(Refusal::Busy)?;
        let store = device.disk()?;
        let mut reader = on_disk(move || store.reader(object, version, 0, u64::MAX)).await?;
        let length = reader.remaining();
        // The sums reveal something of each of these bytes.
        server.admit(call, capability, object, act(version, length))?;
        let mut sums = wanted;
        while reader.remaining() > 0 {
            // Only short steps on one thread, since other work waits for it.
            (reader, sums) = on_disk(move || sums.more(reader)).await?;
        }
        Ok((length, sums))
    }
}

/// The wanted sums of the bytes so far.
#[derive(Default)]
struct Sums {
    crc32c: Option<u32>,
    sha256: Option<Sha256>,
    md5: Option<Md5>,
    blake3: Option<Box<blake3::Hasher>>,
}

impl Sums {
    /// Adds some more bytes.
    fn more(mut self, mut reader: ObjectReader) -> cellar_volume::Result<(ObjectReader, Self)> {
        for _ in 0..16 {
            let Some(piece) = reader.next(READ_PIECE_BYTES)? else {
                break;
            };
            if let Some(sum) = &mut self.crc32c {
                *sum = crc32c::crc32c_append(*sum, &piece);
            }
            if let Some(sum) = &mut self.sha256 {
                sum.update(&piece);
            }
            if let Some(sum) = &mut self.md5 {
                sum.update(&piece);
            }
            if let Some(sum) = &mut self.blake3 {
                sum.update(&piece);
            }
        }
        Ok((reader, self))
    }
}
