//! The answers of a stand-in to the packets of clients. It has neither sockets nor clocks.
//!
//! | client | packet | next | answer |
//! | --- | --- | --- | --- |
//! | unknown | of a call | asked | a question for its version |
//! | asked | of a call, again | asked | the question again |
//! | asked | its version | known | an abort of the last call that it had sent |
//! | known | of a call | known | an abort |
//! | unknown | of a call that the killed server had received | asked | a question for its version |
//! | asked | its version | known | also the aborts of these calls, and of the next ones |
//!
//! The code of an abort must make the client call the next server at once:
//!
//! | client | its version | after the abort |
//! | --- | --- | --- |
//! | commands of OpenAFS | OpenAFS | next server after a negative code |
//! | cache manager of OpenAFS | OpenAFS | the same, after a second |
//! | Linux's own client | ends with `AF_RXRPC` | next server after `VL_IO`; other codes fail |
//! | Cellar's | any other | next server after a negative code |
//!
//! A cache manager calls that server again only when a probe is answered, up to 30 s later. After
//! three restarts within that time it has no server left. So packets of OpenAFS to the location
//! database are held until [`Clients::release`]. A server that is back by then gets them. Sources:
//! afs_analyze.c and afs_daemons.c of OpenAFS 1.8.9; fs/afs/vl_rotate.c of Linux.
//!
//! Calls that the killed server had received are ended at once: their packets are not there.
//!
//! An answer has one byte or four more than the smallest packet that causes it.

use std::collections::HashMap;
use std::net::SocketAddr;

use cellar_rpc::LoggedPacket;
use cellar_rx::packet::{Flags, HEADER_SIZE, Header, PacketType, version_header};
use cellar_wire::abort::AbortCode;

/// Clients that are remembered: 4,096 have some 300 KiB. A full table is emptied, and each client
/// is then asked again.
pub(super) const CLIENTS_MAX: usize = 4096;
/// Packets that are held. Later ones are dropped, and their clients repeat the call.
const HELD_MAX: usize = 1024;
/// The longest packet that is kept: one datagram of an Ethernet.
const PACKET_MAX: usize = 1500;
/// The word of the kernel's client in its version.
const LINUX: &[u8] = b"AF_RXRPC";
/// The word of OpenAFS in a version.
const OPENAFS: &[u8] = b"OpenAFS";

/// The clients of one port.
#[derive(Default)]
pub(super) struct Clients {
    table: HashMap<SocketAddr, Client>,
    /// `None`: packets are no longer held.
    held: Option<Vec<Packet>>,
}

/// A packet and its sender.
pub(super) type Packet = (SocketAddr, Vec<u8>);

enum Client {
    /// The question for its version was sent.
    Asked(Asked),
    Known(Kind),
}

#[derive(Default)]
struct Asked {
    /// A packet of its last call.
    last: Option<(Header, Vec<u8>)>,
    /// Packets of the calls that the killed server had received.
    received: Vec<Header>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Linux,
    OpenAfs,
    Other,
}

impl Kind {
    fn of(version: &[u8]) -> Self {
        let has = |word: &[u8]| version.windows(word.len()).any(|at| at == word);
        match () {
            () if has(LINUX) => Self::Linux,
            () if has(OPENAFS) => Self::OpenAfs,
            () => Self::Other,
        }
    }

    fn code(self) -> AbortCode {
        match self {
            Self::Linux => AbortCode::VL_IO,
            Self::OpenAfs | Self::Other => AbortCode::RX_CALL_DEAD,
        }
    }
}

impl Clients {
    /// Those of the location database: packets of OpenAFS are held until [`Clients::release`].
    pub(super) fn patient() -> Self {
        Self {
            held: Some(Vec::new()),
            ..Self::default()
        }
    }

    /// The packets that have no answer yet, for the server that is back.
    pub(super) fn take_held(&mut self) -> Vec<Packet> {
        let asked = self
            .table
            .drain()
            .filter_map(|(from, client)| match client {
                Client::Asked(asked) => Some((from, asked.last?.1)),
                Client::Known(_) => None,
            });
        let mut held: Vec<_> = asked.collect();
        held.extend(self.held.take().unwrap_or_default());
        held
    }

    /// The aborts of the calls of all held packets. Later packets are not held.
    pub(super) fn release(&mut self) -> Vec<Packet> {
        let held = self.held.take().unwrap_or_default();
        let ended = held.iter().filter_map(|(from, packet)| {
            let header = Header::decode(packet)?;
            Some((*from, abort(&header, Kind::OpenAfs.code())))
        });
        ended.collect()
    }

    /// Ends the last call of a connection's channel that the killed server had received. It may
    /// have answered: the client ignores an abort then. Returns packets for the client.
    pub(super) fn end_received(&mut self, packet: LoggedPacket) -> Vec<Vec<u8>> {
        let LoggedPacket { client, header, .. } = packet;
        let is_new = !self.table.contains_key(&client);
        match self.entry(client) {
            Client::Known(kind) => {
                let code = kind.code();
                let calls = unanswered(&header, *kind);
                calls.map(|call| abort(&call, code)).collect()
            }
            Client::Asked(asked) => {
                asked.received.push(header);
                is_new.then(question).into_iter().collect()
            }
        }
    }

    fn entry(&mut self, client: SocketAddr) -> &mut Client {
        if self.table.len() >= CLIENTS_MAX && !self.table.contains_key(&client) {
            self.table.clear();
        }
        let entry = self.table.entry(client);
        entry.or_insert_with(|| Client::Asked(Asked::default()))
    }

    /// The answers to a packet.
    pub(super) fn answer(&mut self, from: SocketAddr, packet: &[u8]) -> Vec<Vec<u8>> {
        let Some(header) = Header::decode(packet) else {
            return Vec::new();
        };
        match header.packet_type {
            PacketType::VERSION if !header.from_client() => {
                let Some(client @ Client::Asked(_)) = self.table.get_mut(&from) else {
                    return Vec::new();
                };
                let kind = Kind::of(packet.get(HEADER_SIZE..).unwrap_or_default());
                let Client::Asked(asked) = std::mem::replace(client, Client::Known(kind)) else {
                    return Vec::new();
                };
                // The packet of the last call is there. It may be given to the server that is back,
                // so the client must not repeat the call elsewhere.
                let last = asked.last.as_ref().map(|(call, _)| identity(call));
                let received = asked.received.iter();
                let mut answers: Vec<_> = received
                    .flat_map(|of| unanswered(of, kind))
                    .filter(|call| Some(identity(call)) != last)
                    .map(|call| abort(&call, kind.code()))
                    .collect();
                if let Some((call, packet)) = asked.last {
                    answers.extend(self.end(from, &call, &packet, kind));
                }
                answers
            }
            PacketType::DATA | PacketType::ACK | PacketType::ACKALL | PacketType::RESPONSE
                if header.from_client() =>
            {
                match self.entry(from) {
                    Client::Known(kind) => {
                        let kind = *kind;
                        self.end(from, &header, packet, kind).into_iter().collect()
                    }
                    Client::Asked(asked) => {
                        let kept = packet.get(..PACKET_MAX).unwrap_or(packet).to_vec();
                        asked.last = Some((header, kept));
                        vec![question()]
                    }
                }
            }
            _ => Vec::new(),
        }
    }

    /// Ends a call, now or later.
    fn end(
        &mut self,
        from: SocketAddr,
        call: &Header,
        packet: &[u8],
        kind: Kind,
    ) -> Option<Vec<u8>> {
        match &mut self.held {
            Some(held) if kind == Kind::OpenAfs => {
                if held.len() < HELD_MAX && packet.len() <= PACKET_MAX {
                    held.push((from, packet.to_vec()));
                }
                None
            }
            _ => Some(abort(call, kind.code())),
        }
    }
}

/// A call that a killed server had received, and the next one of its channel. The server may have
/// been killed after it had received that one, and before it had logged it. Clients ignore an abort
/// of a call that they have not begun; Linux's client would answer it.
fn unanswered(last: &Header, kind: Kind) -> impl Iterator<Item = Header> {
    let next = Header {
        call_number: last.call_number.wrapping_add(1),
        ..*last
    };
    let calls = [Some(*last), (kind != Kind::Linux).then_some(next)];
    calls.into_iter().flatten()
}

/// The epoch, channel and number of a call.
fn identity(call: &Header) -> (u32, u32, u32) {
    (call.epoch, call.cid, call.call_number)
}

/// Ends the call of a packet; its connection, if the packet belongs to no call.
fn abort(of: &Header, code: AbortCode) -> Vec<u8> {
    let header = Header {
        seq: 0,
        serial: 1,
        packet_type: PacketType::ABORT,
        flags: Flags(0),
        user_status: 0,
        checksum: 0,
        ..*of
    };
    [&header.encode()[..], &code.0.to_be_bytes()].concat()
}

/// Asks for the version, as `rxdebug` does. Linux's client wants a payload that begins with zero.
fn question() -> Vec<u8> {
    let flags = Flags(Flags::CLIENT_INITIATED | Flags::LAST_PACKET);
    let header = Header {
        serial: 1,
        ..version_header(0, flags)
    };
    [&header.encode()[..], &[0]].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALL: Header = Header {
        epoch: 7,
        cid: 0x1234_5674,
        call_number: 3,
        seq: 1,
        serial: 9,
        packet_type: PacketType::DATA,
        flags: Flags(Flags::CLIENT_INITIATED | Flags::LAST_PACKET),
        user_status: 0,
        security_index: 2,
        checksum: 77,
        service: 52,
    };

    fn version(text: &str) -> Vec<u8> {
        let header = Header {
            packet_type: PacketType::VERSION,
            flags: Flags(Flags::LAST_PACKET),
            ..CALL
        };
        [&header.encode()[..], text.as_bytes(), &[0; 8]].concat()
    }

    fn client(number: u32) -> SocketAddr {
        (std::net::Ipv4Addr::from(0x0a00_0000 + number), 7001).into()
    }

    /// The header and code of an abort.
    fn ended(answers: &[Vec<u8>]) -> (Header, i32) {
        let [answer] = answers else {
            panic!("not one answer: {answers:?}");
        };
        let header = Header::decode(answer).expect("a header");
        assert_eq!(header.packet_type, PacketType::ABORT);
        let code = answer[HEADER_SIZE..].try_into().expect("a code");
        (header, i32::from_be_bytes(code))
    }

    #[test]
    fn a_client_is_asked_once_and_its_calls_are_ended() {
        let mut clients = Clients::default();
        let asked = clients.answer(client(1), &CALL.encode());
        let question = Header::decode(&asked[0]).expect("a header");
        assert_eq!(question.packet_type, PacketType::VERSION);
        assert!(question.from_client());
        let later = Header {
            call_number: 4,
            ..CALL
        };
        assert_eq!(clients.answer(client(1), &later.encode()), asked);
        let answer = clients.answer(client(1), &version(" OpenAFS 1.8.9 "));
        let (header, code) = ended(&answer);
        assert_eq!((header.epoch, header.cid), (CALL.epoch, CALL.cid));
        assert_eq!((header.call_number, header.service), (4, 52));
        assert_eq!((header.security_index, header.from_client()), (2, false));
        assert_eq!(code, -1);
        // The answer to a challenge belongs to the connection.
        let response = Header {
            call_number: 0,
            packet_type: PacketType::RESPONSE,
            ..CALL
        };
        let (header, code) = ended(&clients.answer(client(1), &response.encode()));
        assert_eq!((header.call_number, code), (0, -1));
    }

    #[test]
    fn the_kernels_client_gets_a_code_that_makes_it_go_on() {
        let mut clients = Clients::default();
        clients.answer(client(1), &CALL.encode());
        let (_, code) = ended(&clients.answer(client(1), &version("linux-6.12 AF_RXRPC")));
        assert_eq!(code, 363_521);
        let (_, code) = ended(&clients.answer(client(1), &CALL.encode()));
        assert_eq!(code, 363_521);
    }

    #[test]
    fn a_cache_manager_waits_for_a_server_that_may_be_back_soon() {
        let mut clients = Clients::patient();
        clients.answer(client(1), &CALL.encode());
        let silent = Vec::<Vec<u8>>::new();
        assert_eq!(clients.answer(client(1), &version("OpenAFS 1.8.9")), silent);
        assert_eq!(clients.answer(client(1), &CALL.encode()), silent);
        clients.answer(client(2), &CALL.encode());
        let (_, code) = ended(&clients.answer(client(2), &version("cellar 0.1.0")));
        assert_eq!(code, -1);
        let mut other = Clients::patient();
        other.answer(client(1), &CALL.encode());
        other.answer(client(1), &version("OpenAFS 1.8.9"));
        assert_eq!(other.take_held(), [(client(1), CALL.encode().to_vec())]);
        let held = clients.release();
        assert_eq!(held.len(), 2);
        for (to, abort) in held {
            assert_eq!((to, ended(&[abort]).1), (client(1), -1));
        }
        let (_, code) = ended(&clients.answer(client(1), &CALL.encode()));
        assert_eq!(code, -1);
        assert!(clients.release().is_empty());
    }

    #[test]
    fn other_packets_have_no_answer() {
        let mut clients = Clients::default();
        let mut is_silent = |packet: &[u8]| clients.answer(client(1), packet).is_empty();
        assert!(is_silent(&version("a surprise")));
        let encoded = CALL.encode();
        assert!(is_silent(&encoded[..27]));
        for kind in [3, 4, 6, 8, 13, 200] {
            let packet = Header {
                packet_type: PacketType(kind),
                ..CALL
            };
            assert!(is_silent(&packet.encode()), "{kind}");
        }
        let of_server = Header {
            flags: Flags(0),
            ..CALL
        };
        assert!(is_silent(&of_server.encode()));
    }

    #[test]
    fn calls_that_the_server_had_received_are_ended_when_the_version_is_known() {
        let mut clients = Clients::patient();
        let received = |call_number| LoggedPacket {
            client: client(1),
            header: Header {
                call_number,
                ..CALL
            },
            age: std::time::Duration::ZERO,
        };
        let asked = clients.end_received(received(3));
        let question = Header::decode(&asked[0]).expect("a header");
        assert_eq!(question.packet_type, PacketType::VERSION);
        assert_eq!(clients.end_received(received(8)), Vec::<Vec<u8>>::new());
        // The client's last call, which follows the third, is held, and the others are ended.
        let last = Header {
            call_number: 4,
            ..CALL
        };
        assert_eq!(clients.answer(client(1), &last.encode()), asked);
        let answers = clients.answer(client(1), &version("OpenAFS 1.8.9"));
        let numbers = answers.into_iter().map(|answer| {
            let (header, code) = ended(&[answer]);
            assert_eq!((code, header.from_client()), (-1, false));
            header.call_number
        });
        assert_eq!(numbers.collect::<Vec<_>>(), [3, 8, 9]);
        assert_eq!(clients.end_received(received(9)).len(), 2);
        assert_eq!(clients.release().len(), 1);
    }

    #[test]
    fn a_returned_server_gets_the_packets_of_clients_without_an_answer() {
        let mut clients = Clients::default();
        clients.answer(client(1), &CALL.encode());
        clients.answer(client(2), &CALL.encode());
        clients.answer(client(2), &version("OpenAFS 1.8.9"));
        assert_eq!(clients.take_held(), [(client(1), CALL.encode().to_vec())]);
    }

    #[test]
    fn the_table_has_a_bound_and_answers_are_small() {
        let mut clients = Clients::default();
        let count = u32::try_from(CLIENTS_MAX).expect("count") + 10;
        for number in 0..count {
            let answer = clients.answer(client(number), &CALL.encode());
            assert_eq!(answer.len(), 1);
            assert!(answer[0].len() <= HEADER_SIZE + 4);
        }
        assert_eq!(clients.table.len(), 10);
        assert!(clients.answer(client(0), &version("x")).is_empty());
    }
}
