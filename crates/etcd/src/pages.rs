//! Reads all rows of the database at one revision, in pages.
//!
//! etcd counts the rest of a request's range for each page, in spite of the limit. Pages of one
//! range over millions of rows would take seconds each. Therefore a request ends where the next
//! prefix of some length in bits begins, and this length follows the density of the keys:
//!
//! | an answer | next length |
//! |---|---|
//! | some rows of many | one more than what the middle and the last key have in common |
//! | a prefix with few rows | one less |
//! | a prefix without rows | four less |

use std::time::Duration;

use bytes::Bytes;

use crate::client::{Client, Fault};
use crate::copy::Copy;
use crate::keys::Keys;
use crate::messages::RangeRequest;

/// Rows in one answer at most.
const PAGE: i64 = 5000;
/// A prefix with more rows is divided.
const MANY: i64 = 4 * PAGE;
/// A prefix with fewer rows is extended.
const FEW: i64 = PAGE / 2;
/// The longest time to read one page.
const PATIENCE: Duration = Duration::from_secs(30);
/// The longest time for one member's answer. The first page of many millions of rows takes
/// seconds.
const ONE_MEMBER: Duration = Duration::from_secs(9);

/// Reads all rows at one revision.
pub(crate) async fn read_all(client: &Client, keys: &Keys) -> Result<Copy, Fault> {
    let mut copy = Copy::default();
    let (first, end) = keys.all();
    let mut place = Place::new(first, end);
    while let Some((from, to)) = place.range() {
        let request = RangeRequest {
            key: from,
            range_end: to,
            limit: PAGE,
            revision: copy.revision,
            keys_only: false,
        };
        let page = client.slow_range(&request, PATIENCE, ONE_MEMBER).await?;
        if copy.revision == 0 {
            copy.revision = page.header.map_or(0, |header| header.revision);
        }
        for row in &page.kvs {
            copy.load(keys, row);
        }
        let keys = page.kvs.get(page.kvs.len() / 2).zip(page.kvs.last());
        let keys = keys.map(|(middle, last)| (&middle.key[..], &last.key[..]));
        place.took(keys, page.count, page.more);
    }
    copy.end_load(keys);
    Ok(copy)
}

/// The place up to which the rows are read.
struct Place {
    from: Bytes,
    /// The end of all.
    end: Bytes,
    /// The end of the present prefix.
    to: Bytes,
    /// The length of prefixes in bits.
    length: usize,
    /// Rows of the present prefix.
    rows: i64,
    is_at_end: bool,
}

impl Place {
    fn new(from: Bytes, end: Bytes) -> Self {
        Self {
            length: 8 * from.len(),
            from,
            to: end.clone(),
            end,
            rows: 0,
            is_at_end: false,
        }
    }

    /// The range of the next request; `None` at the end.
    fn range(&self) -> Option<(Bytes, Bytes)> {
        (!self.is_at_end).then(|| (self.from.clone(), self.to.clone()))
    }

    /// Goes on behind a page with these middle and last keys. `count` is that of the rows of the
    /// whole range.
    fn took(&mut self, keys: Option<(&[u8], &[u8])>, count: i64, more: bool) {
        if let Some((middle, last)) = keys.filter(|_| more) {
            self.from = [last, &[0]].concat().into();
            self.rows += PAGE;
            if count > MANY {
                self.length = common_bits(middle, last) + 1;
                self.enter(last);
            }
            return;
        }
        self.rows += count;
        if self.to >= self.end {
            self.is_at_end = true;
            return;
        }
        let fewer = match self.rows {
            0 => 4,
            rows if rows < FEW => 1,
            _ => 0,
        };
        self.length = self.length.saturating_sub(fewer);
        self.from = self.to.clone();
        let at = self.from.clone();
        self.enter(&at);
    }

    /// Begins the prefix that `key` has.
    fn enter(&mut self, key: &[u8]) {
        self.rows = 0;
        let to = behind_all_with(key, self.length);
        self.to = to.map_or(self.end.clone(), |to| to.min(self.end.clone()));
    }
}

/// The number of bits at the beginning of both.
fn common_bits(one: &[u8], other: &[u8]) -> usize {
    let mut pairs = one.iter().zip(other);
    let bytes = pairs.by_ref().take_while(|(a, b)| a == b).count();
    let different = one.get(bytes).zip(other.get(bytes));
    8 * bytes + different.map_or(0, |(a, b)| (a ^ b).leading_zeros() as usize)
}

/// The first key behind all that begin with these bits of `key`; `None` if there is none.
fn behind_all_with(key: &[u8], bits: usize) -> Option<Bytes> {
    let bits = bits.min(8 * key.len());
    let mut end = key.get(..bits.div_ceil(8))?.to_vec();
    let mut step = 1_u8 << ((8 - bits % 8) % 8);
    for at in (0..end.len()).rev() {
        let byte = end.get_mut(at)?;
        let (sum, is_over) = (*byte & !(step - 1)).overflowing_add(step);
        *byte = sum;
        if !is_over {
            return Some(end.into());
        }
        end.truncate(at);
        step = 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Reads all keys as etcd would answer. Returns the number of requests, and of the keys that
    /// etcd visits.
    fn read(all: &BTreeSet<Vec<u8>>) -> (usize, i64) {
        let mut place = Place::new(Bytes::from_static(b"/c/"), Bytes::from_static(b"/c0"));
        let mut rest = all.iter();
        let (mut requests, mut visited) = (0, 0);
        while let Some((from, to)) = place.range() {
            assert!(from < to, "{from:?} {to:?}");
            let found: Vec<_> = all.range(from.to_vec()..to.to_vec()).collect();
            let page = &found[..found.len().min(PAGE as usize)];
            for key in page {
                assert_eq!(rest.next(), Some(*key));
            }
            let keys = page.get(page.len() / 2).zip(page.last());
            let keys = keys.map(|(middle, last)| (&middle[..], &last[..]));
            place.took(keys, found.len() as i64, found.len() > page.len());
            requests += 1;
            visited += found.len() as i64;
        }
        assert_eq!(rest.next(), None);
        (requests, visited)
    }

    #[test]
    fn pages_of_one_prefix_do_not_visit_all_rows() {
        let mut keys = BTreeSet::new();
        keys.insert(b"/c/last".to_vec());
        keys.insert(b"/c/meta".to_vec());
        for number in 0..400_000_u32 {
            let id = (0x2000_0000 + 3 * number).to_be_bytes();
            for kind in 0..3 {
                keys.insert([&b"/c/t/vl.id/"[..], &[kind], &id].concat());
            }
            let name = format!("/c/t/vl.name/user.v{number:07}");
            keys.insert(name.into_bytes());
            keys.insert([b"/c/t/vl.entry/", &number.to_be_bytes()[..]].concat());
        }
        let (requests, visited) = read(&keys);
        let count = keys.len() as i64;
        println!("{requests} requests, {visited} visits of {count} keys");
        assert!(requests < 3 * keys.len() / PAGE as usize, "{requests}");
        // One range for all pages would visit 200 times as many.
        assert!(visited < 8 * count, "{visited} visits of {count} keys");
    }

    #[test]
    fn few_rows_need_one_request() {
        let keys = (0..900_u32).map(|n| format!("/c/t/a/{n}").into_bytes());
        assert_eq!(read(&keys.collect()), (1, 900));
        assert_eq!(read(&BTreeSet::new()), (1, 0));
    }

    #[test]
    fn keys_of_any_length_are_read_once() {
        let mut keys = BTreeSet::new();
        for number in 0..30_000_u32 {
            keys.insert([&b"/c/t/a/"[..], &vec![0xff; number as usize % 40], b"x"].concat());
            let bytes = number.wrapping_mul(0x9e37_79b1).to_be_bytes();
            keys.insert([&b"/c/t/b/"[..], &bytes[..number as usize % 5]].concat());
            keys.insert([&b"/c/t/\xff\xff"[..], &bytes].concat());
        }
        read(&keys);
    }

    #[test]
    fn the_end_of_a_prefix() {
        let end = |key: &[u8], bits| behind_all_with(key, bits).map(|end| end.to_vec());
        assert_eq!(end(b"ab", 16), Some(b"ac".to_vec()));
        assert_eq!(end(b"ab", 99), Some(b"ac".to_vec()));
        assert_eq!(end(b"ab", 8), Some(b"b".to_vec()));
        // 'b' is 0x62.
        assert_eq!(end(b"ab", 12), Some(b"a\x70".to_vec()));
        assert_eq!(end(b"a\xff\xff", 24), Some(b"b".to_vec()));
        assert_eq!(end(b"a\xff\xff", 17), Some(b"b".to_vec()));
        assert_eq!(end(b"\xff", 3), None);
        assert_eq!(end(b"", 3), None);
        assert_eq!(common_bits(b"ab", b"ac"), 15);
        assert_eq!(common_bits(b"ab", b"abc"), 16);
        assert_eq!(common_bits(b"", b"a"), 0);
    }
}
