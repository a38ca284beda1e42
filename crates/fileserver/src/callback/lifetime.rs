//! The lifetime of a callback promise: the more hosts hold one for the same file, the shorter.
//!
//! A change of a file that many hosts cache costs one message for each host. With short promises,
//! hosts that no longer use the file drop out without a message. Source: observed of OpenAFS 1.8's
//! file server.

/// Seconds promised for a file that `holders` hosts hold already.
#[must_use]
pub fn lifetime_secs(holders: u32) -> u32 {
    match holders {
        0..=7 => 4 * 3600,
        8..=15 => 3600,
        16..=23 => 30 * 60,
        24..=39 => 15 * 60,
        40..=63 => 10 * 60,
        _ => 7 * 60,
    }
}

/// Seconds promised for a whole read-only or backup volume.
pub const VOLUME_LIFETIME_SECS: u32 = 2 * 3600;

/// Holders added before the lookup when the status came in a bulk call. Such promises are many, and
/// most are for files that no program opens.
pub const BULK_HOLDERS: u32 = 22;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lifetimes_shrink_with_holders() {
        let steps = [
            (0, 14400),
            (7, 14400),
            (8, 3600),
            (15, 3600),
            (16, 1800),
            (23, 1800),
        ];
        let more = [
            (24, 900),
            (39, 900),
            (40, 600),
            (63, 600),
            (64, 420),
            (10_000, 420),
        ];
        for (holders, secs) in steps.into_iter().chain(more) {
            assert_eq!(lifetime_secs(holders), secs, "{holders} holders");
        }
        assert_eq!(lifetime_secs(BULK_HOLDERS), 1800);
    }
}
