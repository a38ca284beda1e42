//! Bounds of memory and of sizes.

/// Bytes of a part of an upload, at least: S3 wants 5 MiB, and larger parts cost fewer requests.
pub const PART_BYTES_MIN: u64 = 8 << 20;
/// Bytes of a part of a copy in a directory, where a part costs one write.
pub const DIRECTORY_PART_BYTES: u64 = 1 << 20;
/// Bytes of a copy in a directory after which the kernel begins to write them to the disk. Without
/// this, the sync at the end of a copy waits for all its bytes.
pub const WRITEBACK_BYTES: u64 = 8 << 20;
/// Parts of an upload, at most: the limit of S3. Larger copies have larger parts.
pub const PARTS_MAX: u64 = 10_000;
/// Bytes of a copy, at most: the limit of S3. Parts of such a copy have 525 MiB.
pub const COPY_BYTES_MAX: u64 = 5 << 40;
/// Parts of one upload that are in memory at the same time: one that is being read, and two on
/// their way.
pub const PARTS_IN_MEMORY_MAX: usize = 3;
/// Bytes that are read from a source or from a directory at a time.
pub const PIECE_BYTES_MAX: usize = 1 << 20;
/// Pieces between the reader of a copy and its sink: the archive reads ahead while the sink writes.
pub const PIECES_AHEAD_MAX: usize = 4;
/// Bytes that the slowest link carries in a second. A part has the patience of the archive and this
/// time for its bytes.
pub const BYTES_PER_SECOND_MIN: u64 = 1 << 20;
/// Bytes of the identity object and of other small objects, at most.
pub const SMALL_BYTES_MAX: u64 = 64 << 10;
/// Bytes of an error message of an archive, at most.
pub const MESSAGE_BYTES_MAX: usize = 512;

/// Bytes of each part of a copy of this length.
pub(crate) fn part_bytes(length: u64) -> u64 {
    let least = length.div_ceil(PARTS_MAX).next_multiple_of(1 << 20);
    least.max(PART_BYTES_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_copy_has_few_enough_parts() {
        for length in [0, 1, PART_BYTES_MIN, 80_000 << 20, 1 << 40, COPY_BYTES_MAX] {
            assert!(length.div_ceil(part_bytes(length)) <= PARTS_MAX, "{length}");
        }
        assert_eq!(part_bytes(COPY_BYTES_MAX) >> 20, 525);
    }
}
