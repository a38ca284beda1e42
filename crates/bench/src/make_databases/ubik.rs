//! The file of a Ubik database: a header of 64 bytes, then the contents in whole pages.

const MAGIC: u32 = 0x0035_4545;
const HEADER_BYTES: usize = 64;
const PAGE_BYTES: usize = 1024;
/// Any time before now, as the first half of the database's version.
const EPOCH: u32 = 1_700_000_000;
/// Buckets of each hash table.
const BUCKETS: u32 = 8191;

/// The contents of a database, in big-endian words.
pub(super) struct Contents {
    bytes: Vec<u8>,
}

impl Contents {
    pub(super) fn new(length: usize) -> Self {
        Self {
            bytes: vec![0; length],
        }
    }

    /// Appends zeros; returns their place.
    pub(super) fn grow(&mut self, length: usize) -> usize {
        let place = self.bytes.len();
        self.bytes.resize(place + length, 0);
        place
    }

    pub(super) fn len(&self) -> u32 {
        self.bytes.len() as u32
    }

    pub(super) fn put(&mut self, at: usize, word: u32) {
        self.put_bytes(at, &word.to_be_bytes());
    }

    pub(super) fn get(&self, at: usize) -> u32 {
        let word = self.bytes[at..at + 4].try_into();
        u32::from_be_bytes(word.unwrap_or_default())
    }

    pub(super) fn put_bytes(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Puts the block at `place` in front of the chain that begins at `head`.
    pub(super) fn push(&mut self, head: usize, place: usize, link: usize) {
        self.put(place + link, self.get(head));
        self.put(head, place as u32);
    }

    /// The whole file.
    pub(super) fn into_file(self) -> Vec<u8> {
        let pages = self.bytes.len().div_ceil(PAGE_BYTES);
        let mut file = Vec::with_capacity(HEADER_BYTES + pages * PAGE_BYTES);
        for word in [MAGIC, HEADER_BYTES as u32, EPOCH, 1] {
            file.extend_from_slice(&word.to_be_bytes());
        }
        file.resize(HEADER_BYTES, 0);
        file.extend_from_slice(&self.bytes);
        file.resize(HEADER_BYTES + pages * PAGE_BYTES, 0);
        file
    }
}

/// Bucket of a name. `base` is 63 for volumes and 31 for users.
pub(super) fn name_bucket(name: &[u8], base: u32) -> usize {
    let add = |hash: u32, byte: &u8| {
        let hash = hash.wrapping_mul(base).wrapping_add(u32::from(*byte));
        hash.wrapping_sub(base)
    };
    (name.iter().rev().fold(0, add) % BUCKETS) as usize
}

/// Bucket of an id, by its absolute value.
pub(super) fn id_bucket(id: i32) -> usize {
    (id.unsigned_abs() % BUCKETS) as usize
}
