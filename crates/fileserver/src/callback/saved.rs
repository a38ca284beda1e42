//! Callback state over a clean restart: hosts, their promises, and locks, in one file.
//!
//! The server writes the file when it stops, after its last answer. It reads *and deletes* the file
//! when it starts. So the file exists only between a clean stop and the next start, and after a
//! crash there is none. Hosts from the file are verified: at its first call the server asks each
//! host who it is. The host keeps its promises only if it reports the same UUID.
//!
//! Format, in words of 32 bits in network order:
//!
//! 1. `CBS2`, seconds of saving, counts of hosts, promises, locks and locked ranges;
//! 2. the hosts;
//! 3. the promises (index of the host, fid, expiry);
//! 4. the locks (fid, count, expiry);
//! 5. the ranges (fid, owner, serial, expiry, first byte, last byte, 1 if alone). Ranges of one
//!    owner in a file are adjacent and in order;
//! 6. a CRC-32C of everything before.
//!
//! `CBS1` has no ranges, and is still read. A file that has another format, or is truncated or
//! altered, is not used.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::Path;

use cellar_wire::ids::{AfsUuid, Fid};
use cellar_wire::rxafs::{HeldRanges, LockRange, LockRanges};

use super::CallbackTable;
use crate::host::{HostSlot, HostTable, SavedHost};
use crate::lock::{Holder, LockTable};

const MAGIC: &[u8; 4] = b"CBS2";
const MAGIC_WITHOUT_RANGES: &[u8; 4] = b"CBS1";
const HOST_BYTES: usize = 16 + 4 + 16 + 4;
const PROMISE_BYTES: usize = 20;
const LOCK_BYTES: usize = 20;
const RANGE_BYTES: usize = 60;
const HEAD_BYTES: usize = 24;
const CHECKSUM_BYTES: usize = 4;

/// The saved state.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct SavedState {
    pub(crate) saved_at: u32,
    pub(crate) hosts: Vec<SavedHost>,
    /// Index of the host, fid, expiry.
    promises: Vec<(u32, Fid, u32)>,
    /// Fid, count, expiry.
    locks: Vec<(Fid, i32, u32)>,
    ranges: Vec<(Fid, Holder)>,
}

impl SavedState {
    /// Collects the state to save: the hosts that are up, and their promises and locks.
    pub(crate) fn of(hosts: &HostTable, callbacks: &CallbackTable, locks: &LockTable) -> Self {
        let mut saved = Self::default();
        let mut places: HashMap<HostSlot, u32> = HashMap::new();
        for host in hosts.all() {
            if let Some(entry) = host.to_save() {
                places.insert(host.slot(), saved.hosts.len() as u32);
                saved.hosts.push(entry);
            }
        }
        callbacks.for_each(|fid, slot, expires| {
            if let Some(&place) = places.get(&slot) {
                saved.promises.push((place, fid, expires));
            }
        });
        locks.for_each(
            |fid, count, expires| saved.locks.push((fid, count, expires)),
            |fid, holder| saved.ranges.push((fid, holder.clone())),
        );
        saved
    }

    /// Restores everything that has not expired. Returns the number of restored promises.
    pub(crate) fn restore(
        self,
        hosts: &HostTable,
        callbacks: &CallbackTable,
        locks: &LockTable,
        now: u32,
    ) -> usize {
        let slots: Vec<Option<HostSlot>> = self
            .hosts
            .iter()
            .map(|saved| hosts.restore(saved, now))
            .collect();
        let mut restored = 0;
        for (place, fid, expires) in self.promises {
            let slot = slots.get(place as usize).copied().flatten();
            if let Some(slot) = slot.filter(|_| expires > now)
                && callbacks.restore(fid, slot, expires)
            {
                restored += 1;
            }
        }
        for (fid, count, expires) in self.locks {
            locks.restore(fid, count, expires, now);
        }
        for (fid, holder) in self.ranges {
            locks.restore_ranges(fid, holder, now);
        }
        restored
    }

    fn to_bytes(&self) -> Vec<u8> {
        let each = |(_, holder): &(Fid, Holder)| holder.ranges.ranges().len();
        let ranges: usize = self.ranges.iter().map(each).sum();
        let mut out = Vec::with_capacity(
            HEAD_BYTES
                + self.hosts.len() * HOST_BYTES
                + self.promises.len() * PROMISE_BYTES
                + self.locks.len() * LOCK_BYTES
                + ranges * RANGE_BYTES
                + CHECKSUM_BYTES,
        );
        out.extend_from_slice(MAGIC);
        let counts = [
            self.hosts.len(),
            self.promises.len(),
            self.locks.len(),
            ranges,
        ];
        put(&mut out, &[self.saved_at]);
        put(&mut out, &counts.map(|count| count as u32));
        for host in &self.hosts {
            out.extend_from_slice(&host.uuid.0);
            put(&mut out, &[u32::from(host.translates_errors)]);
            let ip = match host.address.ip() {
                IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                IpAddr::V6(ip) => ip,
            };
            out.extend_from_slice(&ip.octets());
            put(&mut out, &[u32::from(host.address.port())]);
        }
        for &(place, fid, expires) in &self.promises {
            put(
                &mut out,
                &[place, fid.volume.0, fid.vnode.0, fid.uniquifier.0, expires],
            );
        }
        for &(fid, count, expires) in &self.locks {
            put(
                &mut out,
                &[
                    fid.volume.0,
                    fid.vnode.0,
                    fid.uniquifier.0,
                    count as u32,
                    expires,
                ],
            );
        }
        for (fid, holder) in &self.ranges {
            for range in holder.ranges.ranges() {
                put(&mut out, &[fid.volume.0, fid.vnode.0, fid.uniquifier.0]);
                put(&mut out, &holder.owner);
                put_long(&mut out, holder.serial);
                put(&mut out, &[holder.expires]);
                put_long(&mut out, range.first);
                put_long(&mut out, range.last);
                put(&mut out, &[u32::from(range.alone)]);
            }
        }
        let checksum = crc32c::crc32c(&out);
        put(&mut out, &[checksum]);
        out
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (body, checksum) = bytes.split_at_checked(bytes.len().checked_sub(CHECKSUM_BYTES)?)?;
        let mut rest = Rest(checksum);
        if rest.words::<1>()? != [crc32c::crc32c(body)] {
            return None;
        }
        let (magic, behind) = body.split_first_chunk::<4>()?;
        let mut rest = Rest(behind);
        let [saved_at, hosts, promises, locks] = rest.words()?;
        let ranges = match magic {
            MAGIC => rest.words::<1>()?[0],
            MAGIC_WITHOUT_RANGES => 0,
            _ => return None,
        };
        let counted = u64::from(hosts) * HOST_BYTES as u64
            + u64::from(promises) * PROMISE_BYTES as u64
            + u64::from(locks) * LOCK_BYTES as u64
            + u64::from(ranges) * RANGE_BYTES as u64;
        if counted != rest.0.len() as u64 {
            return None;
        }
        let mut state = Self {
            saved_at,
            ..Self::default()
        };
        for _ in 0..hosts {
            state.hosts.push(rest.host()?);
        }
        for _ in 0..promises {
            let [place, volume, vnode, uniquifier, expires] = rest.words()?;
            state
                .promises
                .push((place, Fid::new(volume, vnode, uniquifier), expires));
        }
        for _ in 0..locks {
            let [volume, vnode, uniquifier, count, expires] = rest.words()?;
            state
                .locks
                .push((Fid::new(volume, vnode, uniquifier), count as i32, expires));
        }
        let mut gathered: Vec<(Fid, Holder, Vec<LockRange>)> = Vec::new();
        for _ in 0..ranges {
            let (fid, holder, range) = rest.range()?;
            match gathered.last_mut() {
                Some((of, last, all)) if *of == fid && last.owner == holder.owner => {
                    all.push(range)
                }
                _ => gathered.push((fid, holder, vec![range])),
            }
        }
        for (fid, holder, all) in gathered {
            let ranges = HeldRanges::in_order(LockRanges::try_from(all).ok()?)?;
            state.ranges.push((fid, Holder { ranges, ..holder }));
        }
        Some(state)
    }
}

fn put(out: &mut Vec<u8>, words: &[u32]) {
    for word in words {
        out.extend_from_slice(&word.to_be_bytes());
    }
}

fn put_long(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(&number.to_be_bytes());
}

struct Rest<'a>(&'a [u8]);

impl Rest<'_> {
    fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*bytes)
    }

    fn words<const N: usize>(&mut self) -> Option<[u32; N]> {
        let mut words = [0; N];
        for word in &mut words {
            *word = u32::from_be_bytes(self.bytes()?);
        }
        Some(words)
    }

    fn long(&mut self) -> Option<u64> {
        Some(u64::from_be_bytes(self.bytes()?))
    }

    /// A range and its holder. The holder's own list of ranges is empty.
    fn range(&mut self) -> Option<(Fid, Holder, LockRange)> {
        let [volume, vnode, uniquifier] = self.words()?;
        let holder = Holder {
            owner: self.words()?,
            serial: self.long()?,
            expires: self.words::<1>()?[0],
            host: None,
            ranges: HeldRanges::default(),
        };
        let range = LockRange {
            first: self.long()?,
            last: self.long()?,
            alone: self.words::<1>()? != [0],
        };
        Some((Fid::new(volume, vnode, uniquifier), holder, range))
    }

    fn host(&mut self) -> Option<SavedHost> {
        let uuid = AfsUuid(self.bytes()?);
        let [translates_errors] = self.words()?;
        let ip = Ipv6Addr::from(self.bytes::<16>()?);
        let [port] = self.words()?;
        let address = SocketAddr::new(IpAddr::V6(ip), u16::try_from(port).ok()?);
        Some(SavedHost {
            uuid,
            translates_errors: translates_errors != 0,
            address: crate::host::canonical(address),
        })
    }
}

/// Writes the file atomically.
pub(crate) fn save(path: &Path, state: &SavedState) -> io::Result<()> {
    cellar_private::replace(path, &state.to_bytes())
}

/// Reads and deletes the file. The deletion is durable before the state is used.
pub(crate) fn take(path: &Path) -> io::Result<Option<SavedState>> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(cause) => return Err(cause),
    };
    std::fs::remove_file(path)?;
    cellar_private::sync_name(path)?;
    match SavedState::from_bytes(&bytes) {
        Some(state) => Ok(Some(state)),
        None => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "not saved callback state",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> SavedState {
        let host = |last: u8| SavedHost {
            uuid: AfsUuid([last; 16]),
            translates_errors: last == 1,
            address: SocketAddr::from(([192, 0, 2, last], 7001)),
        };
        SavedState {
            saved_at: 1000,
            hosts: vec![host(1), host(2)],
            promises: vec![(0, Fid::new(5, 6, 7), 2000), (1, Fid::new(5, 0, 0), 3000)],
            locks: vec![(Fid::new(5, 6, 7), -1, 1300)],
            ranges: vec![
                (
                    Fid::new(5, 8, 7),
                    holder(1, &[(0, 9, true), (20, 29, false)]),
                ),
                (Fid::new(5, 8, 7), holder(2, &[(u64::MAX, u64::MAX, true)])),
                (Fid::new(5, 10, 7), holder(2, &[(0, 9, false)])),
            ],
        }
    }

    fn holder(owner: u32, ranges: &[(u64, u64, bool)]) -> Holder {
        let range = |&(first, last, alone)| LockRange { first, last, alone };
        Holder {
            owner: [owner; 4],
            serial: 1 << 40,
            expires: 1300,
            host: None,
            ranges: HeldRanges::of_all(ranges.iter().map(range)),
        }
    }

    #[test]
    fn the_saved_state_of_an_earlier_server_is_read() {
        let state = SavedState {
            ranges: Vec::new(),
            ..sample()
        };
        let mut bytes = state.to_bytes();
        bytes.truncate(bytes.len() - CHECKSUM_BYTES);
        // The old form has no count of ranges.
        bytes.drain(HEAD_BYTES - 4..HEAD_BYTES);
        bytes[..4].copy_from_slice(MAGIC_WITHOUT_RANGES);
        let checksum = crc32c::crc32c(&bytes);
        put(&mut bytes, &[checksum]);
        assert_eq!(SavedState::from_bytes(&bytes), Some(state));
    }

    #[test]
    fn ranges_that_are_locked_come_back() {
        let (hosts, callbacks) = (HostTable::new(10), CallbackTable::new(10, 1));
        let locks = LockTable::default();
        sample().restore(&hosts, &callbacks, &locks, 1200);
        let fid = Fid::new(5, 8, 7);
        let held = |owner: u32, now: u32| locks.held_by(fid, [owner; 4], now);
        assert_eq!(
            held(1, 1200),
            holder(1, &[(0, 9, true), (20, 29, false)]).ranges
        );
        assert!(!held(2, 1299).is_empty() && held(2, 1300).is_empty());
        let mut saved = SavedState::of(&hosts, &callbacks, &locks).ranges;
        saved.sort_by_key(|(fid, holder)| (*fid, holder.owner));
        assert_eq!(saved, sample().ranges);
    }

    #[test]
    fn saved_state_is_read_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("callbacks");
        assert!(take(&path).unwrap().is_none());
        save(&path, &sample()).unwrap();
        assert_eq!(take(&path).unwrap(), Some(sample()));
        assert!(
            take(&path).unwrap().is_none(),
            "a crash now must find nothing"
        );
    }

    #[test]
    fn a_file_cut_short_or_altered_is_as_none() {
        let bytes = sample().to_bytes();
        for len in 0..bytes.len() {
            assert_eq!(SavedState::from_bytes(&bytes[..len]), None);
        }
        for at in 0..bytes.len() {
            let mut altered = bytes.clone();
            altered[at] ^= 0x10;
            assert_eq!(SavedState::from_bytes(&altered), None, "byte {at}");
        }
    }

    #[test]
    fn only_what_has_not_expired_comes_back() {
        let (hosts, callbacks) = (HostTable::new(10), CallbackTable::new(10, 1));
        let locks = LockTable::default();
        assert_eq!(sample().restore(&hosts, &callbacks, &locks, 2500), 1);
        assert_eq!(callbacks.held(), 1);
        let host = hosts.by_uuid(AfsUuid([2; 16])).unwrap();
        assert!(callbacks.holds_any(host.slot()) && !host.is_ready());
        assert_eq!(locks.held(), 0);
        let saved = SavedState::of(&hosts, &callbacks, &locks);
        assert_eq!(saved.hosts.len(), 2);
    }
}
