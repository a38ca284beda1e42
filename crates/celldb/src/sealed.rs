//! Rows as they lie in the file: each value with a checksum of table, key and value behind it.
//!
//! A flipped bit in a key moves a row to another place, where it would count. A member of one group
//! would be one of another. So the checksum covers the key as well. A row that does not match it is
//! an error of the lookup that met it.

/// Bytes of the checksum: CRC-32C, big-endian.
pub const SUM_BYTES: usize = 4;

/// A value as it is stored in `table` under `key`.
pub fn seal(table: &str, key: &[u8], value: &[u8]) -> Vec<u8> {
    let mut sealed = Vec::with_capacity(value.len() + SUM_BYTES);
    sealed.extend_from_slice(value);
    sealed.extend_from_slice(&sum(table, key, value).to_be_bytes());
    sealed
}

/// The value of a stored row.
///
/// # Errors
/// The reason why the row is not as it was written.
pub fn open<'a>(table: &str, key: &[u8], stored: &'a [u8]) -> Result<&'a [u8], &'static str> {
    let (value, stored_sum) = stored
        .split_last_chunk::<SUM_BYTES>()
        .ok_or("it is shorter than its checksum")?;
    match sum(table, key, value) == u32::from_be_bytes(*stored_sum) {
        true => Ok(value),
        false => Err("it does not match its checksum"),
    }
}

fn sum(table: &str, key: &[u8], value: &[u8]) -> u32 {
    // The length of the key: bytes must not pass from key to value.
    let length = u32::try_from(key.len()).unwrap_or(u32::MAX).to_be_bytes();
    let parts = [table.as_bytes(), &[0], &length, key, value];
    parts.into_iter().fold(0, crc32c::crc32c_append)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_changed_bit_of_key_and_value_is_noticed() {
        let (key, value) = (b"key of a row".to_vec(), b"value".to_vec());
        let stored = seal("members", &key, &value);
        assert_eq!(open("members", &key, &stored).unwrap(), value);
        assert!(open("member", &key, &stored).is_err(), "another table");
        for bit in 0..key.len() * 8 {
            let mut key = key.clone();
            key[bit / 8] ^= 1 << (bit % 8);
            assert!(open("members", &key, &stored).is_err(), "bit {bit}");
        }
        for bit in 0..stored.len() * 8 {
            let mut stored = stored.clone();
            stored[bit / 8] ^= 1 << (bit % 8);
            assert!(open("members", &key, &stored).is_err(), "bit {bit}");
        }
        for length in 0..stored.len() {
            assert!(open("members", &key, &stored[..length]).is_err());
        }
    }

    #[test]
    fn an_empty_value_is_covered_by_its_key() {
        let stored = seal("members", b"12", b"");
        assert_eq!(open("members", b"12", &stored).unwrap(), b"");
        assert!(open("members", b"1", &stored).is_err());
        assert!(open("members", b"13", &stored).is_err());
    }
}
