//! Sums of the bytes of a copy, off the shard's thread.

use std::pin::Pin;

use bytes::Bytes;
use cellar_archive::{Hasher, Receipt};
use cellar_rpc::begin_blocking;
use parking_lot::Mutex;

/// Bytes that are hashed at a time.
const BATCH_BYTES: usize = 1 << 20;

/// Sums of a stream of pieces. Pieces arrive in the size of packets; a batch of them is hashed on a
/// thread of the pool, while the next batch arrives.
#[derive(Default)]
pub(super) struct Sums {
    hasher: Hasher,
    /// The batch that is being hashed. It returns the hasher. The mutex only makes it `Sync`.
    running: Option<Mutex<Pin<Box<dyn Future<Output = Hasher> + Send>>>>,
    batch: Vec<Bytes>,
    batch_bytes: usize,
}

impl Sums {
    /// Adds bytes. Waits if the batch before the last one is not hashed yet.
    pub(super) async fn add(&mut self, piece: Bytes) {
        self.batch_bytes += piece.len();
        self.batch.push(piece);
        if self.batch_bytes >= BATCH_BYTES {
            self.hash_batch().await;
        }
    }

    /// The sums of all bytes.
    pub(super) async fn finish(mut self) -> Receipt {
        self.hash_batch().await;
        self.idle_hasher().await.finish()
    }

    async fn hash_batch(&mut self) {
        let mut hasher = self.idle_hasher().await;
        let batch = std::mem::take(&mut self.batch);
        self.batch_bytes = 0;
        let running = begin_blocking(move || {
            for piece in &batch {
                hasher.update(piece);
            }
            hasher
        });
        self.running = Some(Mutex::new(Box::pin(running)));
    }

    /// The hasher of all batches so far.
    async fn idle_hasher(&mut self) -> Hasher {
        match self.running.take() {
            Some(running) => running.into_inner().await,
            None => std::mem::take(&mut self.hasher),
        }
    }
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

    #[tokio::test]
    async fn batches_are_hashed_in_order() {
        let bytes: Vec<u8> = (0..3 * BATCH_BYTES + 7).map(|n| (n / 251) as u8).collect();
        let (mut sums, mut whole) = (Sums::default(), Hasher::default());
        for piece in bytes.chunks(1412) {
            sums.add(Bytes::copy_from_slice(piece)).await;
        }
        whole.update(&bytes);
        assert_eq!(sums.finish().await, whole.finish());
        assert_eq!(Sums::default().finish().await, Hasher::default().finish());
    }

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
