//! Sums of the bytes of a copy, off the shard's thread.

use bytes::Bytes;
use cellar_archive::{Hasher, Receipt};
use cellar_rpc::blocking;

/// Adds bytes. Runs on a thread of the pool, because a megabyte takes milliseconds.
pub(super) async fn add(mut hasher: Hasher, bytes: Bytes) -> Hasher {
    blocking(move || {
        hasher.update(&bytes);
        hasher
    })
    .await
}

/// BLAKE3 as words of the wire.
pub(super) fn blake3(receipt: &Receipt) -> [u32; 8] {
    words(&receipt.blake3)
}

/// MD5 as words of the wire.
pub(super) fn md5(receipt: &Receipt) -> [u32; 4] {
    words(&receipt.md5)
}

fn words<const N: usize>(bytes: &[u8]) -> [u32; N] {
    let mut words = [0; N];
    for (word, four) in words.iter_mut().zip(bytes.as_chunks::<4>().0) {
        *word = u32::from_be_bytes(*four);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_of_the_tools() {
        let mut hasher = Hasher::default();
        hasher.update(b"abc");
        let receipt = hasher.finish();
        // `printf abc | md5sum` and `b3sum`.
        let wanted = [0x9001_5098, 0x3cd2_4fb0, 0xd696_3f7d, 0x28e1_7f72];
        assert_eq!(md5(&receipt), wanted);
        assert_eq!(blake3(&receipt)[..2], [0x6437_b3ac, 0x3846_5133]);
    }
}
