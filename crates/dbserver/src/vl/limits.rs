//! Bounds of the volume location database, most of them the protocol's.

/// Servers that can be named: their numbers are 0 to 254.
pub(crate) const SERVERS_MAX: usize = 255;
/// Addresses of one server.
pub(crate) const ADDRESSES_MAX: usize = 15;
/// The highest value of a site's flags.
pub(crate) const SITE_FLAGS_MAX: u8 = 0x80;
/// Ids that are reserved at a time, to be handed out from memory: so many are skipped at a restart.
pub(crate) const RESERVED_IDS: u32 = 100;
/// Ids that one call may take.
pub(crate) const BUMP_MAX: u32 = 0x7fff_ffff;
/// The first id that a new cell hands out.
pub(crate) const FIRST_VOLUME_ID: u32 = 0x2000_0000;
/// Entries in one answer of ListAttributesN2.
pub(crate) const PAGE_ENTRIES: usize = 500;
/// Entries looked at while the model is locked for reading.
pub(crate) const SCAN_ENTRIES: usize = 512;
