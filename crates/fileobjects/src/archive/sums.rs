//! Sums of the bytes of a copy.

use bytes::Bytes;
use cellar_rpc::blocking;
use md5::{Digest, Md5};

/// Sums of bytes that pass.
#[derive(Default)]
pub(super) struct Sums {
    blake3: blake3::Hasher,
    md5: Md5,
    length: u64,
}

/// The result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Summed {
    pub(super) length: u64,
    pub(super) blake3: [u32; 8],
    pub(super) md5: [u32; 4],
}

impl Sums {
    /// Adds bytes. Runs on a thread of the pool, because a megabyte takes milliseconds.
    pub(super) async fn add(mut self, bytes: Bytes) -> Self {
        blocking(move || {
            self.length += bytes.len() as u64;
            self.blake3.update(&bytes);
            self.md5.update(&bytes);
            self
        })
        .await
    }

    /// The sums of all bytes.
    pub(super) fn finish(self) -> Summed {
        Summed {
            length: self.length,
            blake3: words(self.blake3.finalize().as_bytes()),
            md5: words(&self.md5.finalize()),
        }
    }
}

/// Bytes of a sum as words of the wire.
fn words<const N: usize>(bytes: &[u8]) -> [u32; N] {
    let mut words = [0; N];
    for (word, four) in words.iter_mut().zip(bytes.chunks(4)) {
        *word = four
            .iter()
            .fold(0, |word, byte| word << 8 | u32::from(*byte));
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_of_the_tools() {
        let mut sums = Sums::default();
        sums.md5.update(b"abc");
        sums.blake3.update(b"abc");
        let summed = sums.finish();
        // `printf abc | md5sum` and `b3sum`.
        assert_eq!(
            summed.md5,
            [0x9001_5098, 0x3cd2_4fb0, 0xd696_3f7d, 0x28e1_7f72]
        );
        assert_eq!(summed.blake3[..2], [0x6437_b3ac, 0x3846_5133]);
    }
}
