//! Lookup of hosts by address and port, by UUID, and by slot.
//!
//! The table is searched only for each new connection and for each break, because calls keep their
//! host with their connection. One lock, held for a lookup, is therefore enough.
//!
//! A slot is given to another host only when no call holds the old host any longer. A call that
//! still runs for a dropped host may give a promise under its slot. [`HostTable::reap`] returns
//! such slots when they are unused, and empties them first.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use cellar_wire::ids::AfsUuid;
use parking_lot::Mutex;

use super::{DOWN, ERRORTRANS, GONE, Host, HostSlot, KNOWN, SavedHost, VERIFY};

/// All hosts.
pub struct HostTable {
    capacity: usize,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    slots: Vec<Option<Arc<Host>>>,
    free: Vec<u32>,
    retired: Vec<Arc<Host>>,
    by_address: HashMap<SocketAddr, Arc<Host>>,
    by_uuid: HashMap<AfsUuid, Arc<Host>>,
}

/// Numbers of hosts, for statistics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostCounts {
    /// Records.
    pub hosts: usize,
    /// Of these, hosts that have not identified themselves.
    pub unknown: usize,
    /// Of these, hosts that do not answer.
    pub down: usize,
    /// Of these, hosts active at or after the given time.
    pub active: usize,
    /// Dropped records that a call may still use.
    pub retired: usize,
}

/// Numbers of near and far hosts, by the address classes of IPv4.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Networks {
    /// In the server's network, or the same subnet of it (the same 24 bits; for IPv6, 64).
    pub same: usize,
    /// In another subnet of its network (of class A, B or C).
    pub other_subnet: usize,
    /// In another network.
    pub other_network: usize,
}

impl Networks {
    fn add(&mut self, server: IpAddr, host: IpAddr) {
        let (same, other_subnet) = match (server, host) {
            (IpAddr::V4(server), IpAddr::V4(host)) => {
                let class: u32 = match server.octets()[0] {
                    0..128 => 0xff00_0000,
                    128..192 => 0xffff_0000,
                    _ => 0xffff_ff00,
                };
                let differ = u32::from(server) ^ u32::from(host);
                (differ & 0xffff_ff00 == 0, differ & class == 0)
            }
            (IpAddr::V6(server), IpAddr::V6(host)) => {
                (server.segments()[..4] == host.segments()[..4], false)
            }
            _ => (false, false),
        };
        match (same, other_subnet) {
            (true, _) => self.same += 1,
            (_, true) => self.other_subnet += 1,
            _ => self.other_network += 1,
        }
    }
}

/// The canonical form of an address: an IPv4-mapped IPv6 address becomes IPv4.
pub(crate) fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V6(v6) => match v6.to_ipv4_mapped() {
            Some(v4) => SocketAddr::new(IpAddr::V4(v4), address.port()),
            None => SocketAddr::new(IpAddr::V6(v6), address.port()),
        },
        IpAddr::V4(_) => address,
    }
}

impl HostTable {
    /// A table for at most `capacity` hosts.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self {
            capacity,
            inner: Mutex::default(),
        }
    }

    /// The host that calls from this address, if it is known.
    #[must_use]
    pub fn find(&self, address: SocketAddr) -> Option<Arc<Host>> {
        self.inner
            .lock()
            .by_address
            .get(&canonical(address))
            .cloned()
    }

    /// The host that calls from this address. Creates its record if it is new. `None` if the table
    /// is full.
    #[must_use]
    pub fn find_or_create(&self, address: SocketAddr, now: u32) -> Option<Arc<Host>> {
        let address = canonical(address);
        let mut inner = self.inner.lock();
        if let Some(host) = inner.by_address.get(&address) {
            return Some(host.clone());
        }
        if inner.slots.len() - inner.free.len() >= self.capacity {
            return None;
        }
        let slot = inner.free.pop().unwrap_or(inner.slots.len() as u32);
        let host = Arc::new(Host::new(HostSlot(slot), address, now));
        match inner.slots.get_mut(slot as usize) {
            Some(place) => *place = Some(host.clone()),
            None => inner.slots.push(Some(host.clone())),
        }
        inner.by_address.insert(address, host.clone());
        Some(host)
    }

    /// Restores a saved host, which the server verifies at its first call. `None` if there is no
    /// room.
    pub(crate) fn restore(&self, saved: &SavedHost, now: u32) -> Option<HostSlot> {
        let host = self.find_or_create(saved.address, now)?;
        if self.claim_uuid(&host, saved.uuid).is_some() {
            return None;
        }
        host.set(
            KNOWN
                | VERIFY
                | if saved.translates_errors {
                    ERRORTRANS
                } else {
                    0
                },
        );
        Some(host.slot())
    }

    /// The host of a slot, even if it was dropped.
    #[must_use]
    pub fn by_slot(&self, slot: HostSlot) -> Option<Arc<Host>> {
        self.inner.lock().slots.get(slot.0 as usize)?.clone()
    }

    /// The host of a UUID.
    #[must_use]
    pub fn by_uuid(&self, uuid: AfsUuid) -> Option<Arc<Host>> {
        self.inner.lock().by_uuid.get(&uuid).cloned()
    }

    /// Enters the UUID that a host reported. If another host has this UUID, returns that host and
    /// enters nothing.
    pub(crate) fn claim_uuid(&self, host: &Arc<Host>, uuid: AfsUuid) -> Option<Arc<Host>> {
        let mut inner = self.inner.lock();
        if let Some(other) = inner.by_uuid.get(&uuid)
            && !Arc::ptr_eq(other, host)
        {
            return Some(other.clone());
        }
        let old = host.record.lock().uuid.replace(uuid);
        if let Some(old) = old
            && old != uuid
        {
            inner.by_uuid.remove(&old);
        }
        inner.by_uuid.insert(uuid, host.clone());
        None
    }

    /// Assigns the calls from `address` to `host` from now on, and drops the record `duplicate`.
    pub(crate) fn merge(&self, duplicate: &Arc<Host>, host: &Arc<Host>, address: SocketAddr) {
        let address = canonical(address);
        let mut inner = self.inner.lock();
        inner.by_address.insert(address, host.clone());
        Self::drop_record(&mut inner, duplicate);
    }

    /// Removes an address from a host, unless it is the address at which the host is called back.
    pub(crate) fn detach(&self, host: &Arc<Host>, address: SocketAddr) {
        let address = canonical(address);
        let mut inner = self.inner.lock();
        let is_its = inner.by_address.get(&address);
        if is_its.is_some_and(|known| Arc::ptr_eq(known, host)) && host.give_up_address(address) {
            inner.by_address.remove(&address);
        }
    }

    /// Drops a host's record. Its slot comes back through [`Self::reap`].
    pub(crate) fn remove(&self, host: &Arc<Host>) {
        Self::drop_record(&mut self.inner.lock(), host);
    }

    fn drop_record(inner: &mut Inner, host: &Arc<Host>) {
        let already = host.flags.fetch_or(GONE, Ordering::AcqRel) & GONE != 0;
        if already {
            return;
        }
        let (uuid, addresses) = {
            let record = host.record.lock();
            let mut addresses = record.alternates.clone();
            addresses.push(record.primary);
            (record.uuid, addresses)
        };
        for address in addresses {
            if inner
                .by_address
                .get(&address)
                .is_some_and(|other| Arc::ptr_eq(other, host))
            {
                inner.by_address.remove(&address);
            }
        }
        if let Some(uuid) = uuid
            && inner
                .by_uuid
                .get(&uuid)
                .is_some_and(|other| Arc::ptr_eq(other, host))
        {
            inner.by_uuid.remove(&uuid);
        }
        inner.retired.push(host.clone());
        host.moved.notify_waiters();
    }

    /// Frees the slots of dropped hosts that no call uses any longer. `empty` must remove all
    /// promises under a slot, before the slot can belong to another host.
    pub(crate) fn reap(&self, mut empty: impl FnMut(HostSlot)) {
        let unused: Vec<Arc<Host>> = {
            let mut inner = self.inner.lock();
            // Two references belong to the table: the slot's and the retired list's.
            let (unused, used) = std::mem::take(&mut inner.retired)
                .into_iter()
                .partition(|host| Arc::strong_count(host) <= 2);
            inner.retired = used;
            unused
        };
        for host in unused {
            empty(host.slot);
            let mut inner = self.inner.lock();
            inner.slots[host.slot.0 as usize] = None;
            inner.free.push(host.slot.0);
        }
    }

    /// All hosts that are not dropped.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<Host>> {
        let inner = self.inner.lock();
        inner
            .slots
            .iter()
            .flatten()
            .filter(|host| !host.has(GONE))
            .cloned()
            .collect()
    }

    /// Numbers of near and far hosts, relative to the server's address. All zero if the address is
    /// `None`.
    #[must_use]
    pub fn networks(&self, server: Option<IpAddr>) -> Networks {
        let mut networks = Networks::default();
        if let Some(server) = server {
            let inner = self.inner.lock();
            for host in inner.slots.iter().flatten().filter(|host| !host.has(GONE)) {
                networks.add(server, host.address().ip());
            }
        }
        networks
    }

    /// Numbers of hosts. A host is active if it was active at or after `since`.
    #[must_use]
    pub fn counts(&self, since: u32) -> HostCounts {
        let inner = self.inner.lock();
        let mut counts = HostCounts {
            retired: inner.retired.len(),
            ..HostCounts::default()
        };
        for host in inner.slots.iter().flatten().filter(|host| !host.has(GONE)) {
            counts.hosts += 1;
            counts.unknown += usize::from(!host.has(KNOWN));
            counts.down += usize::from(host.has(DOWN));
            counts.active += usize::from(host.last_active() >= since);
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8, port: u16) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, last], port))
    }

    #[test]
    fn hosts_are_near_and_far() {
        let table = HostTable::new(10);
        for host in ["10.1.1.2", "10.1.1.3", "10.2.1.2", "192.0.2.1"] {
            let address = SocketAddr::new(host.parse().unwrap(), 7001);
            table.find_or_create(address, 0).unwrap();
        }
        let networks = table.networks(Some("10.1.1.1".parse().unwrap()));
        let expected = Networks {
            same: 2,
            other_subnet: 1,
            other_network: 1,
        };
        assert_eq!(networks, expected);
        assert_eq!(table.networks(None), Networks::default());
    }

    #[test]
    fn hosts_behind_one_address_differ_by_port() {
        let table = HostTable::new(10);
        let first = table.find_or_create(address(1, 7001), 0).unwrap();
        let second = table.find_or_create(address(1, 40000), 0).unwrap();
        assert_ne!(first.slot(), second.slot());
        let again = table
            .find_or_create("[::ffff:192.0.2.1]:7001".parse().unwrap(), 0)
            .unwrap();
        assert_eq!(first.slot(), again.slot());
    }

    #[test]
    fn a_uuid_belongs_to_one_host() {
        let table = HostTable::new(10);
        let first = table.find_or_create(address(1, 7001), 0).unwrap();
        let second = table.find_or_create(address(2, 7001), 0).unwrap();
        let uuid = AfsUuid([7; 16]);
        assert!(table.claim_uuid(&first, uuid).is_none());
        assert_eq!(
            table.claim_uuid(&second, uuid).unwrap().slot(),
            first.slot()
        );
        table.merge(&second, &first, address(2, 7001));
        first.add_alternate(address(2, 7001));
        assert!(second.has(GONE));
        assert_eq!(table.find(address(2, 7001)).unwrap().slot(), first.slot());
        // A host that reports another UUID releases the old one.
        assert!(table.claim_uuid(&first, AfsUuid([8; 16])).is_none());
        assert!(table.by_uuid(uuid).is_none());
    }

    #[test]
    fn a_slot_is_reused_only_when_nothing_uses_the_host() {
        let table = HostTable::new(2);
        let first = table.find_or_create(address(1, 7001), 0).unwrap();
        let slot = first.slot();
        table.remove(&first);
        assert!(table.find(address(1, 7001)).is_none());
        let mut emptied = Vec::new();
        table.reap(|slot| emptied.push(slot));
        assert_eq!(emptied, [], "a call still runs");
        drop(first);
        table.reap(|slot| emptied.push(slot));
        assert_eq!(emptied, [slot]);
        let other = table.find_or_create(address(3, 7001), 0).unwrap();
        assert_eq!(other.slot(), slot);
        assert!(table.find_or_create(address(4, 7001), 0).is_some());
        assert!(table.find_or_create(address(5, 7001), 0).is_none(), "full");
    }
}
