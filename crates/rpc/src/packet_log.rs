//! The last packets of calls that a shard has received, in memory that another process can read.
//!
//! A killed process cannot say which calls it had not answered. Its log says which calls it had
//! received, and the reader ends them. The end of a call is not logged: clients ignore an abort of
//! an ended call.
//!
//! The log is a ring of records in an anonymous file (`memfd_create`). The server maps it, so a
//! record costs no system call. A record has 64 bytes, in the byte order of the machine:
//!
//! | bytes | content |
//! | --- | --- |
//! | 0 to 7 | serial number from 1; 0 while the record is written |
//! | 8 to 15 | time in milliseconds (`CLOCK_MONOTONIC_COARSE`) |
//! | 16 to 31 | the client's IPv6 address; an IPv4 one is mapped |
//! | 32 to 33 | the client's port |
//! | 36 to 63 | the header of the packet |

use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{Ordering, compiler_fence};
use std::time::Duration;

use cellar_rx::packet::{Flags, HEADER_SIZE, Header, PacketType};
use memmap2::MmapMut;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals};
use rustix::time::{ClockId, clock_gettime};

const RECORD_BYTES: usize = 64;
const HEADER_AT: usize = RECORD_BYTES - HEADER_SIZE;
/// Records of a log. A shard that receives 40,000 calls in a second fills it in 0.1 s.
const RECORDS: usize = 4096;
/// The places of the type and the flags in a header (rx-wire facts 1.1).
const TYPE_AT: usize = 20;
const FLAGS_AT: usize = 21;

/// The log of a shard of a port.
pub(crate) struct PacketLog {
    file: File,
    records: MmapMut,
    written: u64,
}

/// A packet of a call that a process has received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggedPacket {
    /// Its sender.
    pub client: SocketAddr,
    /// Its header.
    pub header: Header,
    /// The time since it came, to some milliseconds.
    pub age: Duration,
}

impl PacketLog {
    #[allow(unsafe_code, reason = "a mapped file has no safe interface")]
    pub(crate) fn new() -> io::Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = File::from(rustix::fs::memfd_create("cellar-packets", flags)?);
        file.set_len((RECORDS * RECORD_BYTES) as u64)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        // SAFETY: the file is anonymous and its size is sealed. Only this process writes to it: a
        // reader has a descriptor for `LoggedPacket::read_all` alone.
        let records = unsafe { MmapMut::map_mut(&file)? };
        Ok(Self {
            file,
            records,
            written: 0,
        })
    }

    /// Adds a datagram, if it is a packet of a client's call.
    pub(crate) fn record(&mut self, from: SocketAddr, datagram: &[u8]) {
        let Some(header) = datagram.first_chunk::<HEADER_SIZE>() else {
            return;
        };
        let is_request = header[TYPE_AT] == PacketType::DATA.0
            && header[FLAGS_AT] & Flags::CLIENT_INITIATED != 0;
        if !is_request {
            return;
        }
        let at = (self.written as usize % RECORDS) * RECORD_BYTES;
        let Some(record) = self.records.get_mut(at..at + RECORD_BYTES) else {
            return;
        };
        self.written += 1;
        let address = match from.ip() {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        record[..8].fill(0);
        // The process can be killed between any two of these writes.
        compiler_fence(Ordering::SeqCst);
        record[8..16].copy_from_slice(&now_millis().to_ne_bytes());
        record[16..32].copy_from_slice(&address.octets());
        record[32..34].copy_from_slice(&from.port().to_ne_bytes());
        record[HEADER_AT..].copy_from_slice(header);
        compiler_fence(Ordering::SeqCst);
        record[..8].copy_from_slice(&self.written.to_ne_bytes());
    }

    pub(crate) fn duplicate(&self) -> io::Result<OwnedFd> {
        Ok(self.file.try_clone()?.into())
    }
}

impl LoggedPacket {
    /// Reads the log of a process that has ended, in no order. A record that it had not finished
    /// is left out.
    ///
    /// # Errors
    /// The descriptor is not that of a log.
    pub fn read_all(log: OwnedFd) -> io::Result<Vec<Self>> {
        let mut records = vec![0; RECORDS * RECORD_BYTES];
        File::from(log).read_exact_at(&mut records, 0)?;
        let (records, _) = records.as_chunks::<RECORD_BYTES>();
        let now = now_millis();
        Ok(records
            .iter()
            .filter_map(|record| Self::decode(record, now))
            .collect())
    }

    fn decode(record: &[u8; RECORD_BYTES], now: u64) -> Option<Self> {
        let (serial, rest) = record.split_first_chunk()?;
        let (time, rest) = rest.split_first_chunk()?;
        let (address, rest) = rest.split_first_chunk::<16>()?;
        let (port, _) = rest.split_first_chunk()?;
        if u64::from_ne_bytes(*serial) == 0 {
            return None;
        }
        let age = now.saturating_sub(u64::from_ne_bytes(*time));
        let address = Ipv6Addr::from(*address).to_canonical();
        Some(Self {
            client: SocketAddr::new(address, u16::from_ne_bytes(*port)),
            header: Header::decode(&record[HEADER_AT..])?,
            age: Duration::from_millis(age),
        })
    }
}

fn now_millis() -> u64 {
    let now = clock_gettime(ClockId::MonotonicCoarse);
    let (seconds, nanoseconds) = (now.tv_sec as u64, now.tv_nsec as u64);
    seconds * 1000 + nanoseconds / 1_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(call_number: u32, packet_type: PacketType, flags: u8) -> [u8; HEADER_SIZE] {
        let header = Header {
            epoch: 7,
            cid: 0x1234_5676,
            call_number,
            seq: 1,
            serial: 9,
            packet_type,
            flags: Flags(flags),
            user_status: 0,
            security_index: 2,
            checksum: 0,
            service: 73,
        };
        header.encode()
    }

    #[test]
    fn the_last_packets_of_calls_are_read_by_another_descriptor() {
        let mut log = PacketLog::new().unwrap();
        let clients: [SocketAddr; 2] = [
            "192.0.2.7:4711".parse().unwrap(),
            "[2001:db8::7]:4712".parse().unwrap(),
        ];
        let request = Flags::CLIENT_INITIATED | Flags::LAST_PACKET;
        log.record(clients[0], &packet(1, PacketType::ACK, request));
        log.record(clients[0], &packet(2, PacketType::DATA, Flags::LAST_PACKET));
        log.record(clients[0], &[0; 27]);
        log.record(clients[0], &packet(3, PacketType::DATA, request));
        log.record(clients[1], &packet(4, PacketType::DATA, request));
        let read = LoggedPacket::read_all(log.duplicate().unwrap()).unwrap();
        let seen: Vec<_> = read
            .iter()
            .map(|packet| (packet.client, packet.header.call_number))
            .collect();
        assert_eq!(seen, [(clients[0], 3), (clients[1], 4)]);
        assert!(read[0].age < Duration::from_secs(60));
        assert_eq!((read[0].header.epoch, read[0].header.service), (7, 73));

        let count = RECORDS as u32 + 10;
        for number in 0..count {
            log.record(clients[0], &packet(100 + number, PacketType::DATA, request));
        }
        let read = LoggedPacket::read_all(log.duplicate().unwrap()).unwrap();
        let numbers: Vec<_> = read
            .iter()
            .map(|packet| packet.header.call_number)
            .collect();
        assert_eq!(numbers.len(), RECORDS);
        assert_eq!(numbers.iter().min(), Some(&110));
        assert_eq!(numbers.iter().max(), Some(&(99 + count)));
    }

    #[test]
    fn an_unfinished_record_is_left_out() {
        let mut log = PacketLog::new().unwrap();
        let client = "192.0.2.7:4711".parse().unwrap();
        log.record(
            client,
            &packet(1, PacketType::DATA, Flags::CLIENT_INITIATED),
        );
        log.records[..8].fill(0);
        let read = LoggedPacket::read_all(log.duplicate().unwrap()).unwrap();
        assert_eq!(read, []);
        assert!(LoggedPacket::read_all(OwnedFd::from(tempfile())).is_err());
    }

    /// An empty file.
    fn tempfile() -> File {
        rustix::fs::memfd_create("empty", MemfdFlags::CLOEXEC)
            .unwrap()
            .into()
    }
}
