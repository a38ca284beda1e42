//! Limits of the volume location database, most of them the protocol's.

/// The most servers; their numbers are 0 to 254.
pub(crate) const SERVERS_MAX: usize = 255;
/// The most addresses of one server.
pub(crate) const ADDRESSES_MAX: usize = 15;
/// The highest value of a site's flags.
pub(crate) const SITE_FLAGS_MAX: u8 = 0x80;
/// The number of ids that are reserved at a time. A restart skips up to that many.
pub(crate) const RESERVED_IDS: u32 = 100;
/// The number of entry numbers that are reserved at a time. A restart skips up to that many.
pub(crate) const RESERVED_ENTRIES: u32 = 100;
/// The most ids for one call.
pub(crate) const BUMP_MAX: u32 = 0x7fff_ffff;
/// The first id that a new cell assigns.
pub(crate) const FIRST_VOLUME_ID: u32 = 0x2000_0000;
/// The most entries in one reply of ListAttributesN2.
pub(crate) const PAGE_ENTRIES: usize = 500;
/// The number of entries that are checked under one lock of the model.
pub(crate) const SCAN_ENTRIES: usize = 512;
