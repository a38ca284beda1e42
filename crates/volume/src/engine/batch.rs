//! A batch: the puts and deletes that become visible and durable together, and the blocks that they
//! begin or cease to use.

use bytes::Bytes;

use super::key::Key;

/// A run of blocks of 4 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Run {
    /// Number of the first block on the partition.
    pub(crate) start: u64,
    /// The number of blocks.
    pub(crate) count: u32,
}

impl Run {
    pub(crate) fn end(&self) -> u64 {
        self.start + u64::from(self.count)
    }
}

/// The puts, deletes and block changes of one operation.
#[derive(Default, Debug)]
pub(crate) struct Batch {
    pub(crate) entries: Vec<(Key, Option<Bytes>)>,
    pub(crate) taken: Vec<Run>,
    pub(crate) released: Vec<Run>,
    /// Blocks were written. They must be durable before the journal names them.
    pub(crate) wrote_blocks: bool,
}

impl Batch {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn put(&mut self, key: Key, value: Bytes) {
        self.entries.push((key, Some(value)));
    }

    pub(crate) fn delete(&mut self, key: Key) {
        self.entries.push((key, None));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.taken.is_empty() && self.released.is_empty()
    }

    /// Bytes that the encoded batch takes.
    pub(crate) fn encoded_length(&self) -> usize {
        let entries: usize = self
            .entries
            .iter()
            .map(|(key, value)| 6 + key.as_slice().len() + value.as_ref().map_or(0, Bytes::len))
            .sum();
        12 + entries + 12 * (self.taken.len() + self.released.len())
    }

    /// Reads one batch from the front of `bytes`. Returns `None` if they do not hold one.
    pub(crate) fn decode(bytes: &mut Bytes) -> Option<Self> {
        let [entries, taken, released] = [u32(bytes)?, u32(bytes)?, u32(bytes)?];
        let mut batch = Self::new();
        for _ in 0..entries {
            let put = take(bytes, 1)?[0] == 1;
            let key_length = take(bytes, 1)?[0];
            let value_length = u32(bytes)?;
            let key = Key::from_slice(&take(bytes, key_length as usize)?)?;
            let value = take(bytes, value_length as usize)?;
            batch.entries.push((key, put.then_some(value)));
        }
        for index in 0..u64::from(taken) + u64::from(released) {
            let start = u64::from(u32(bytes)?) << 32 | u64::from(u32(bytes)?);
            let run = Run {
                start,
                count: u32(bytes)?,
            };
            if index < u64::from(taken) {
                batch.taken.push(run)
            } else {
                batch.released.push(run)
            }
        }
        Some(batch)
    }
}

/// Batches in their order, to be written together. They share their values with the table in
/// memory. The bytes are copied once, when they are encoded; the thread that does this holds no
/// lock for which others wait.
#[derive(Default, Debug)]
pub(crate) struct Batches {
    /// For each batch the counts of entries, of runs taken and of runs released.
    counts: Vec<[u32; 3]>,
    entries: Vec<(Key, Option<Bytes>)>,
    runs: Vec<Run>,
    length: usize,
}

impl Batches {
    /// Adds one batch. The counts fit into 32 bits: one operation builds a batch in memory.
    pub(crate) fn add(&mut self, batch: &Batch) {
        let counts = [batch.entries.len(), batch.taken.len(), batch.released.len()];
        self.counts.push(counts.map(|count| count as u32));
        self.entries.extend_from_slice(&batch.entries);
        self.runs.extend_from_slice(&batch.taken);
        self.runs.extend_from_slice(&batch.released);
        self.length += batch.encoded_length();
    }

    /// The number of batches.
    pub(crate) fn count(&self) -> usize {
        self.counts.len()
    }

    /// Bytes that `encode` appends.
    pub(crate) fn encoded_length(&self) -> usize {
        self.length
    }

    /// Appends the batches in the form that the journal has.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let (mut entries, mut runs) = (self.entries.iter(), self.runs.iter());
        for counts in &self.counts {
            for count in counts {
                out.extend_from_slice(&count.to_be_bytes());
            }
            for (key, value) in entries.by_ref().take(counts[0] as usize) {
                let value_length = value.as_ref().map_or(0, Bytes::len) as u32;
                out.push(u8::from(value.is_some()));
                out.push(key.as_slice().len() as u8);
                out.extend_from_slice(&value_length.to_be_bytes());
                out.extend_from_slice(key.as_slice());
                out.extend_from_slice(value.as_deref().unwrap_or_default());
            }
            for run in runs.by_ref().take((counts[1] + counts[2]) as usize) {
                out.extend_from_slice(&run.start.to_be_bytes());
                out.extend_from_slice(&run.count.to_be_bytes());
            }
        }
    }
}

fn take(bytes: &mut Bytes, count: usize) -> Option<Bytes> {
    (count <= bytes.len()).then(|| bytes.split_to(count))
}

fn u32(bytes: &mut Bytes) -> Option<u32> {
    let four = take(bytes, 4)?;
    Some(u32::from_be_bytes([four[0], four[1], four[2], four[3]]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_comes_back_and_no_truncation_does() {
        let mut batch = Batch::new();
        batch.put(Key::vnode(1, 2, 3), Bytes::from_static(b"record"));
        batch.delete(Key::volume(9));
        batch.taken.push(Run {
            start: 1 << 33,
            count: 7,
        });
        batch.released.push(Run { start: 5, count: 1 });
        let mut other = Batch::new();
        other.put(Key::volume(10), Bytes::from_static(b"other"));
        let mut batches = Batches::default();
        batches.add(&batch);
        batches.add(&other);
        let mut encoded = Vec::new();
        batches.encode(&mut encoded);
        assert_eq!(encoded.len(), batches.encoded_length());
        let encoded = Bytes::from(encoded);
        let mut rest = encoded.clone();
        for batch in [&batch, &other] {
            let decoded = Batch::decode(&mut rest).unwrap();
            assert_eq!(decoded.entries, batch.entries);
            assert_eq!(decoded.taken, batch.taken);
            assert_eq!(decoded.released, batch.released);
        }
        assert!(rest.is_empty());
        for cut in 0..batch.encoded_length() {
            assert!(Batch::decode(&mut encoded.slice(..cut)).is_none());
        }
    }
}
