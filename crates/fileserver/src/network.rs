//! The addresses of this server. They decide which clients are near, for the tables of `vos examine
//! -extended`, and which transfers go to the server itself.
//!
//! OpenAFS compares the networks of addresses by their class (A, B, C) and ignores the netmask.
//! This server does the same, with all its addresses. In IPv6 the first 64 bits are the network.
//! The machine itself is near.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU16, Ordering};

use parking_lot::RwLock;

use crate::host::canonical;

/// The addresses of this server.
#[derive(Default)]
pub(crate) struct Networks {
    addresses: RwLock<Vec<IpAddr>>,
    /// The port of the volume service; 0 if it is not known.
    volume_port: AtomicU16,
}

impl Networks {
    /// Adds addresses of the server. Unspecified ones are ignored.
    pub(crate) fn add(&self, addresses: &[SocketAddr]) {
        let mut known = self.addresses.write();
        for address in addresses {
            let address = canonical(*address).ip();
            if !address.is_unspecified() && !known.contains(&address) {
                known.push(address);
            }
        }
    }

    /// Sets the address of the volume service.
    pub(crate) fn add_volume_server(&self, address: SocketAddr) {
        self.add(&[address]);
        self.volume_port.store(address.port(), Ordering::Release);
    }

    /// Whether the volume service of this server answers at an address.
    pub(crate) fn is_volume_server(&self, address: SocketAddr) -> bool {
        let port = self.volume_port.load(Ordering::Acquire);
        port != 0
            && port == address.port()
            && self.addresses.read().contains(&canonical(address).ip())
    }

    /// Whether an address of the location database is one of the server's.
    pub(crate) fn is_own(&self, address: u32) -> bool {
        let address = IpAddr::V4(address.into());
        self.addresses.read().contains(&address)
    }

    /// Whether an address is in a network of the server.
    pub(crate) fn has(&self, address: SocketAddr) -> bool {
        let address = canonical(address).ip();
        address.is_loopback()
            || self
                .addresses
                .read()
                .iter()
                .any(|own| is_same_address(*own, address))
    }
}

fn is_same_address(own: IpAddr, other: IpAddr) -> bool {
    match (own, other) {
        (IpAddr::V4(own), IpAddr::V4(other)) => {
            let (own, other) = (own.to_bits(), other.to_bits());
            own & mask(own) == other & mask(own)
        }
        (IpAddr::V6(own), IpAddr::V6(other)) => own.segments()[..4] == other.segments()[..4],
        _ => false,
    }
}

/// The network mask of an address, by the class in its first bits.
fn mask(address: u32) -> u32 {
    match address.leading_ones() {
        0 => 0xff00_0000,
        1 => 0xffff_0000,
        2 => 0xffff_ff00,
        _ => 0xffff_ffff,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_those_of_the_class() {
        let networks = Networks::default();
        let at = |text: &str| SocketAddr::new(text.parse().unwrap(), 7001);
        assert!(networks.has(at("127.0.0.9")) && !networks.has(at("10.1.2.3")));
        networks.add(&[
            at("0.0.0.0"),
            at("10.1.2.3"),
            at("172.16.5.1"),
            at("192.168.7.1"),
            at("2001:db8:1:2::3"),
        ]);
        for near in [
            "10.250.0.1",
            "172.16.250.1",
            "192.168.7.250",
            "::ffff:10.9.9.9",
            "2001:db8:1:2:9::",
            "::1",
        ] {
            assert!(networks.has(at(near)), "{near}");
        }
        for far in ["11.1.2.3", "172.17.5.1", "192.168.8.1", "2001:db8:1:3::3"] {
            assert!(!networks.has(at(far)), "{far}");
        }
        assert!(!networks.is_volume_server(at("10.1.2.3")));
        networks.add_volume_server(at("10.1.2.3"));
        assert!(networks.is_volume_server(at("172.16.5.1")));
        assert!(!networks.is_volume_server(at("10.1.2.4")));
        assert!(!networks.is_volume_server(SocketAddr::new([10, 1, 2, 3].into(), 7005)));
    }
}
