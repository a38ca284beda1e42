//! The validity of a ticket. The rules are those of OpenAFS for Kerberos 5 tickets, so that clients
//! receive the same code from both.
//!
//! The KDC's clock decides when a ticket ends, without tolerance. Its start may be in the server's
//! future by as much as clocks may differ.

use cellar_wire::AbortCode;

use crate::kerberos::NEVER;

/// The most by which clocks may differ, in seconds.
const SKEW: u64 = 15 * 60;
/// The longest life of a ticket, in seconds.
const LIFE_MAX: u32 = 30 * 24 * 3600;

/// Checks a ticket that is valid from `starts` (0: always) to `ends` ([`NEVER`]: without end), in
/// Unix time.
pub(super) fn check(starts: u32, ends: u32, now: u64) -> Result<(), AbortCode> {
    if ends != NEVER && now > u64::from(ends) {
        return Err(AbortCode::RXKADEXPIRED);
    }
    let life = ends.checked_sub(starts).filter(|&life| life > 0);
    let latest = now + SKEW;
    if life.is_none_or(|life| starts != 0 && life > LIFE_MAX)
        || u64::from(starts) > latest + u64::from(LIFE_MAX)
    {
        return Err(AbortCode::RXKADBADTICKET);
    }
    if u64::from(starts) > latest {
        return Err(AbortCode::RXKADNOAUTH);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tickets_are_good_in_their_time() {
        const NOW: u64 = 1_800_000_000;
        const DAY: u32 = 24 * 3600;
        let now = u32::try_from(NOW).unwrap();
        let judge = |starts, ends| check(starts, ends, NOW).err();
        assert_eq!(judge(now - 10, now + 10), None);
        assert_eq!(judge(now - 10, now), None);
        assert_eq!(judge(now + 900, now + DAY), None, "our clock is slow");
        assert_eq!(judge(now + 901, now + DAY), Some(AbortCode::RXKADNOAUTH));
        assert_eq!(judge(now - DAY, now - 1), Some(AbortCode::RXKADEXPIRED));
        assert_eq!(judge(1, 2), Some(AbortCode::RXKADEXPIRED));
        assert_eq!(judge(now, now), Some(AbortCode::RXKADBADTICKET));
        assert_eq!(judge(now + 2, now + 1), Some(AbortCode::RXKADBADTICKET));
        assert_eq!(judge(now, now + 30 * DAY), None);
        let long = judge(now, now + 30 * DAY + 1);
        assert_eq!(long, Some(AbortCode::RXKADBADTICKET));
        let far = judge(now + 31 * DAY, now + 32 * DAY);
        assert_eq!(far, Some(AbortCode::RXKADBADTICKET));
        assert_eq!(judge(0, NEVER), None, "localauth");
        assert_eq!(judge(0, 0x7fff_ffff), None, "older localauth");
        // Valid only for tickets made with the key itself: a KDC's ticket has a start and a bounded
        // life.
        assert_eq!(judge(now, NEVER), Some(AbortCode::RXKADBADTICKET));
        assert_eq!(judge(0, now - DAY), Some(AbortCode::RXKADEXPIRED));
    }
}
