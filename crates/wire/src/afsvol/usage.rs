//! Statistics of the files of a volume, for `vos traverse`.

use cellar_xdr::{List, xdr_struct};

/// Size classes: up to 4 KiB, then each up to twice the one before.
pub const SIZE_CLASSES: usize = 48;
/// The most devices in one report.
pub const USAGE_DEVICES_MAX: usize = 4096;

xdr_struct! {
    /// A number of files or objects, and their bytes.
    #[derive(Copy, Default)]
    pub struct Amount {
        /// The number.
        pub count: u64,
        /// Bytes by length, holes included.
        pub bytes: u64,
    }

    /// The objects on a device.
    #[derive(Copy, Default)]
    pub struct DeviceUsage {
        /// The device's number.
        pub osd: u32,
        /// All objects.
        pub objects: Amount,
        /// Objects whose bytes are nowhere else: no copy in any archive or device, and no parity.
        pub single: Amount,
    }

    /// Statistics of the files of a volume.
    #[derive(Default)]
    pub struct Usage {
        /// Plain files by size: the first class is up to 4 KiB.
        pub sizes: List<Amount, SIZE_CLASSES>,
        /// Plain files whose bytes are on the file server.
        pub here: Amount,
        /// Plain files in objects.
        pub in_objects: Amount,
        /// Plain files whose bytes are in archives only.
        pub wiped: Amount,
        /// The objects of these files, and their copies in archives, by device.
        pub devices: List<DeviceUsage, USAGE_DEVICES_MAX>,
        /// Directories and links.
        pub others: u64,
    }
}

/// The class of a size, as an index into [`Usage::sizes`].
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
