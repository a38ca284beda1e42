//! The BLAKE3 of the bytes of a copy, off the shard's thread. The archive computes the MD5 too.

use std::pin::Pin;

use bytes::Bytes;
use cellar_rpc::begin_blocking;
use cellar_wire::osd::digest_words;
use parking_lot::Mutex;

/// Bytes that are hashed at a time.
const BATCH_BYTES: usize = 1 << 20;

/// The length and the BLAKE3 of the bytes so far.
#[derive(Default)]
struct Hasher {
    length: u64,
    blake3: blake3::Hasher,
}

impl Hasher {
    fn update(&mut self, bytes: &[u8]) {
        self.length = self.length.saturating_add(bytes.len() as u64);
        self.blake3.update(bytes);
    }

    fn sums(&self) -> (u64, [u32; 8]) {
        let blake3 = self.blake3.finalize();
        (self.length, digest_words(blake3.as_bytes()))
    }
}

/// The BLAKE3 of a stream of pieces. Pieces arrive in the size of packets; a batch of them is
/// hashed on a thread of the pool, while the next batch arrives.
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

    /// The length and the BLAKE3 of all bytes, as words of the wire.
    pub(super) async fn finish(mut self) -> (u64, [u32; 8]) {
        self.hash_batch().await;
        self.idle_hasher().await.sums()
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
        assert_eq!(sums.finish().await, whole.sums());
        assert_eq!(Sums::default().finish().await, Hasher::default().sums());
    }

    #[tokio::test]
    async fn sums_are_those_of_the_tools() {
        let mut sums = Sums::default();
        sums.add(Bytes::from_static(b"abc")).await;
        let (length, blake3) = sums.finish().await;
        // `printf abc | b3sum`.
        assert_eq!((length, &blake3[..2]), (3, &[0x6437_b3ac, 0x3846_5133][..]));
    }
}
