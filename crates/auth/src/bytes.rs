//! Reads big-endian records of a file or a peer. Every length is checked against the bytes present.

/// Takes `length` bytes off the front; `None` if there are fewer.
pub(crate) fn take<'a>(rest: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (taken, left) = rest.split_at_checked(length)?;
    *rest = left;
    Some(taken)
}

/// Takes a fixed number of bytes off the front.
pub(crate) fn take_array<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, left) = rest.split_first_chunk()?;
    *rest = left;
    Some(*taken)
}

/// Takes a 32-bit word off the front.
pub(crate) fn take_u32(rest: &mut &[u8]) -> Option<u32> {
    take_array(rest).map(u32::from_be_bytes)
}

/// Takes a 16-bit number off the front.
pub(crate) fn take_u16(rest: &mut &[u8]) -> Option<u16> {
    take_array(rest).map(u16::from_be_bytes)
}
