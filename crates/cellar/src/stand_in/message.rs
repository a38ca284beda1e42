//! The messages of a server that its stand-in watches. All have the same length.
//!
//! | bytes | sockets | a change has begun |
//! | --- | --- | --- |
//! | 0 | 0 | 1 |
//! | 1 | 0 | 0 |
//! | 2 to 3 | 0 | the server's port |
//! | 4 to 19 | 0 | the client's IPv6 address; an IPv4 one is mapped |
//! | 20 to 21 | 0 | the client's port |
//! | 22 to 49 | 0 | the header of the packet that ends the call |
//!
//! Numbers are big-endian. Descriptors of sockets come with the first (`SCM_RIGHTS`).

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use cellar_rx::packet::{HEADER_SIZE, Header};

const HEAD_BYTES: usize = 22;
/// The length of a message.
pub(super) const MESSAGE_BYTES: usize = HEAD_BYTES + HEADER_SIZE;
/// The message that comes with sockets.
pub(super) const SOCKETS: [u8; MESSAGE_BYTES] = [0; MESSAGE_BYTES];
/// The most sockets with one message. Linux permits 253.
pub(super) const SOCKETS_MAX: usize = 128;

/// A change that a server has begun to execute. The stand-in ends it if the server ends before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Begun {
    /// The server's port.
    pub(super) port: u16,
    pub(super) client: SocketAddr,
    /// The header of the packet that ends the call.
    pub(super) abort: Header,
}

impl Begun {
    pub(super) fn encode(&self) -> [u8; MESSAGE_BYTES] {
        let mut message = [0; MESSAGE_BYTES];
        let address = match self.client.ip() {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        message[0] = 1;
        message[2..4].copy_from_slice(&self.port.to_be_bytes());
        message[4..20].copy_from_slice(&address.octets());
        message[20..22].copy_from_slice(&self.client.port().to_be_bytes());
        message[HEAD_BYTES..].copy_from_slice(&self.abort.encode());
        message
    }

    /// `None` for a message of another kind.
    pub(super) fn decode(message: &[u8; MESSAGE_BYTES]) -> Option<Self> {
        if message[0] != 1 {
            return None;
        }
        let mut address = [0; 16];
        address.copy_from_slice(&message[4..20]);
        let address = Ipv6Addr::from(address).to_canonical();
        Some(Self {
            port: u16::from_be_bytes([message[2], message[3]]),
            client: SocketAddr::new(address, u16::from_be_bytes([message[20], message[21]])),
            abort: Header::decode(&message[HEAD_BYTES..])?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cellar_rx::packet::{Flags, PacketType};

    #[test]
    fn a_begun_change_is_read_as_it_was_written() {
        for client in ["192.0.2.7:4711", "[2001:db8::7]:4711"] {
            let begun = Begun {
                port: 7002,
                client: client.parse().expect("an address"),
                abort: Header {
                    epoch: 7,
                    cid: 0x1234_5676,
                    call_number: 3,
                    seq: 0,
                    serial: 9,
                    packet_type: PacketType::ABORT,
                    flags: Flags(0),
                    user_status: 0,
                    security_index: 2,
                    checksum: 0,
                    service: 73,
                },
            };
            assert_eq!(Begun::decode(&begun.encode()), Some(begun));
        }
        assert_eq!(Begun::decode(&SOCKETS), None);
    }
}
