//! What the files of a volume are, for `vos traverse`.

use cellar_xdr::{List, xdr_struct};

/// Classes of sizes: up to 4 KiB, and then each up to twice as much.
pub const SIZE_CLASSES: usize = 48;
/// Devices told of, at most.
pub const USAGE_DEVICES_MAX: usize = 4096;

xdr_struct! {
    /// A number of files or objects, and their bytes.
    #[derive(Copy, Default)]
    pub struct Amount {
        /// How many.
        pub count: u64,
        /// Bytes, as long as they are: holes count.
        pub bytes: u64,
    }

    /// What is on a device.
    #[derive(Copy, Default)]
    pub struct DeviceUsage {
        /// The device's number.
        pub osd: u32,
        /// All objects.
        pub objects: Amount,
        /// Those whose bytes are nowhere else: no other copy has them, and no parity.
        pub single: Amount,
    }

    /// What the files of a volume are.
    #[derive(Default)]
    pub struct Usage {
        /// Plain files by size: the first class is up to 4 KiB.
        pub sizes: List<Amount, SIZE_CLASSES>,
        /// Those whose bytes are on the file server.
        pub here: Amount,
        /// Those in objects.
        pub in_objects: Amount,
        /// Their objects.
        pub devices: List<DeviceUsage, USAGE_DEVICES_MAX>,
        /// Directories and links.
        pub others: u64,
    }
}

/// The class of a size.
#[must_use]
pub fn size_class(bytes: u64) -> usize {
    let pages = bytes.div_ceil(4096).max(1);
    (pages.next_power_of_two().trailing_zeros() as usize).min(SIZE_CLASSES - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_end_with_a_power_of_two() {
        for (bytes, class) in [
            (0, 0),
            (4096, 0),
            (4097, 1),
            (8192, 1),
            (8193, 2),
            (1 << 20, 8),
            ((1 << 20) + 1, 9),
            (1 << 40, 28),
            (1 << 59, 47),
            (i64::MAX as u64, 47),
        ] {
            assert_eq!(size_class(bytes), class, "{bytes}");
        }
    }
}
