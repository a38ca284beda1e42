//! The 28-byte header of every packet.

/// Size of the header, bytes.
pub const HEADER_SIZE: usize = 28;

/// Kind of a packet. Unknown numbers are kept, because an answer needs the rest of the header.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PacketType(pub u8);

impl PacketType {
    /// User data.
    pub const DATA: Self = Self(1);
    /// Acknowledgement.
    pub const ACK: Self = Self(2);
    /// The server cannot accept this call now.
    pub const BUSY: Self = Self(3);
    /// End of a call or connection with a code.
    pub const ABORT: Self = Self(4);
    /// Everything has arrived.
    pub const ACKALL: Self = Self(5);
    /// The server requests authentication of the client.
    pub const CHALLENGE: Self = Self(6);
    /// The authentication of the client.
    pub const RESPONSE: Self = Self(7);
    /// A query in the manner of `rxdebug`, or its answer.
    pub const DEBUG: Self = Self(8);
    /// Ignored; there are three numbers of this kind, 9 to 11.
    pub const PARAMS: Self = Self(9);
    /// A query for the version text, or its answer.
    pub const VERSION: Self = Self(13);
}

impl std::fmt::Debug for PacketType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = match self.0 {
            1 => "DATA",
            2 => "ACK",
            3 => "BUSY",
            4 => "ABORT",
            5 => "ACKALL",
            6 => "CHALLENGE",
            7 => "RESPONSE",
            8 => "DEBUG",
            9..=11 => "PARAMS",
            13 => "VERSION",
            n => return write!(f, "type {n}"),
        };
        f.write_str(name)
    }
}

/// Flag bits of the header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Flags(pub u8);

impl Flags {
    /// The sender is the client end of the connection.
    pub const CLIENT_INITIATED: u8 = 0x01;
    /// Requests an immediate ACK.
    pub const REQUEST_ACK: u8 = 0x02;
    /// Last DATA packet of this direction.
    pub const LAST_PACKET: u8 = 0x04;
    /// More packets of this burst follow (a hint).
    pub const MORE_PACKETS: u8 = 0x08;
    /// On ACK: every other packet is acknowledged.
    pub const SLOW_START_OK: u8 = 0x20;
    /// On DATA: another sub-packet follows in this datagram.
    pub const JUMBO_PACKET: u8 = 0x20;

    /// Whether all of `bits` are set.
    #[must_use]
    pub const fn has(self, bits: u8) -> bool {
        self.0 & bits == bits
    }
}

/// The header, field for field.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// Epoch, chosen by the client process.
    pub epoch: u32,
    /// Connection id, and channel in bits 1-0.
    pub cid: u32,
    /// Call number on the channel; 0: the packet concerns the connection.
    pub call_number: u32,
    /// DATA: sequence number in the stream, from 1. Otherwise 0.
    pub seq: u32,
    /// Counts transmissions per connection and direction, from 1.
    pub serial: u32,
    /// Kind of packet.
    pub packet_type: PacketType,
    /// Flag bits.
    pub flags: Flags,
    /// Opaque to Rx.
    pub user_status: u8,
    /// Security class.
    pub security_index: u8,
    /// DATA: checksum of the security class. Has no meaning in other types (OpenAFS leaves old
    /// bytes there).
    pub checksum: u16,
    /// Service.
    pub service: u16,
}

impl Header {
    /// Decodes the first 28 bytes; `None` if there are fewer.
    #[must_use]
    #[inline]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let b: &[u8; HEADER_SIZE] = bytes.first_chunk()?;
        Some(Self {
            epoch: u32::from_be_bytes([b[0], b[1], b[2], b[3]]),
            cid: u32::from_be_bytes([b[4], b[5], b[6], b[7]]),
            call_number: u32::from_be_bytes([b[8], b[9], b[10], b[11]]),
            seq: u32::from_be_bytes([b[12], b[13], b[14], b[15]]),
            serial: u32::from_be_bytes([b[16], b[17], b[18], b[19]]),
            packet_type: PacketType(b[20]),
            flags: Flags(b[21]),
            user_status: b[22],
            security_index: b[23],
            checksum: u16::from_be_bytes([b[24], b[25]]),
            service: u16::from_be_bytes([b[26], b[27]]),
        })
    }

    /// Encodes the 28 bytes.
    #[must_use]
    #[inline]
    pub fn encode(&self) -> [u8; HEADER_SIZE] {
        let mut b = [0; HEADER_SIZE];
        b[0..4].copy_from_slice(&self.epoch.to_be_bytes());
        b[4..8].copy_from_slice(&self.cid.to_be_bytes());
        b[8..12].copy_from_slice(&self.call_number.to_be_bytes());
        b[12..16].copy_from_slice(&self.seq.to_be_bytes());
        b[16..20].copy_from_slice(&self.serial.to_be_bytes());
        b[20] = self.packet_type.0;
        b[21] = self.flags.0;
        b[22] = self.user_status;
        b[23] = self.security_index;
        b[24..26].copy_from_slice(&self.checksum.to_be_bytes());
        b[26..28].copy_from_slice(&self.service.to_be_bytes());
        b
    }

    /// Whether the sender is the client end of the connection.
    #[must_use]
    #[inline]
    pub const fn from_client(&self) -> bool {
        self.flags.has(Flags::CLIENT_INITIATED)
    }

    /// Channel, 0..=3.
    #[must_use]
    #[inline]
    pub const fn channel(&self) -> usize {
        (self.cid & 3) as usize
    }
}
