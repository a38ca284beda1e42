//! A host's description of itself: addresses and capabilities.
//!
//! Source: the RXAFSCB and RXAFS interfaces (`interfaceAddr`, `Capabilities`).

use cellar_xdr::{Decode, DecodeError, Decoder, Encode, Encoder, List};

use crate::ids::AfsUuid;

/// Words of capability bits; word 0 is the only one in use.
pub type Capabilities = List<u32, 196>;

/// Bits of capability word 0 of a client (TellMeAboutYourself).
pub mod client_capability {
    /// Understands universal errno codes.
    pub const ERROR_TRANSLATION: u32 = 0x1;
}

/// Bits of capability word 0 of a file server (GetCapabilities).
pub mod server_capability {
    /// Sends universal errno codes to hosts that understand them.
    pub const ERROR_TRANSLATION: u32 = 0x1;
    /// Has the 64-bit forms of FetchData and StoreData.
    pub const FILES_64_BIT: u32 = 0x2;
    /// Needs the write right for a write lock.
    pub const WRITE_LOCK_ACL: u32 = 0x4;
    /// Checks locks by the lock or write right alone.
    pub const SANE_ACLS: u32 = 0x8;
}

/// One address of a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    /// The IPv4 address as a number: 192.0.2.1 is 0xc0000201.
    pub address: u32,
    /// The netmask in the same form.
    pub netmask: u32,
    /// The largest packet in bytes.
    pub mtu: u32,
}

/// A host's identity and addresses (`interfaceAddr`, 108 words).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InterfaceAddr {
    /// The host's UUID; nil for one that is not multi-homed.
    pub uuid: AfsUuid,
    /// At most 32 addresses.
    pub interfaces: List<Interface, 32>,
}

impl Encode for InterfaceAddr {
    fn encode(&self, out: &mut Encoder<'_>) {
        let column = |field: fn(&Interface) -> u32| {
            let mut words = [0; 32];
            for (word, interface) in words.iter_mut().zip(&self.interfaces) {
                *word = field(interface);
            }
            words
        };
        out.u32(self.interfaces.len() as u32);
        self.uuid.encode(out);
        out.words(column(|interface| interface.address));
        out.words(column(|interface| interface.netmask));
        out.words(column(|interface| interface.mtu));
    }
}

impl Decode for InterfaceAddr {
    const MIN_SIZE: usize = 108 * 4;

    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let count = d.u32()? as usize;
        let uuid = AfsUuid::decode(d)?;
        let [addresses, netmasks, mtus] = [d.words::<32>()?, d.words::<32>()?, d.words::<32>()?];
        if count > 32 {
            return Err(DecodeError::TooLong {
                limit: 32,
                len: count,
            });
        }
        let columns = addresses.into_iter().zip(netmasks).zip(mtus).take(count);
        let interfaces = columns.map(|((address, netmask), mtu)| Interface {
            address,
            netmask,
            mtu,
        });
        Ok(Self {
            uuid,
            interfaces: List::from_iter_cut(interfaces),
        })
    }
}
