//! A caller who has presented a ticket.

use cellar_wire::AfsTime;

/// The protection of a connection's packets. A higher level includes the lower ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Level {
    /// The caller is authenticated. Packets travel in clear, with 16 bits of checksum over their
    /// numbers.
    Clear = 0,
    /// The length and numbers of each packet are sealed too.
    Auth = 1,
    /// Everything is encrypted.
    Crypt = 2,
}

impl Level {
    /// The level with that number on the wire.
    #[must_use]
    pub fn from_wire(number: u32) -> Option<Self> {
        match number {
            0 => Some(Self::Clear),
            1 => Some(Self::Auth),
            2 => Some(Self::Crypt),
            _ => None,
        }
    }

    /// Its number on the wire.
    #[must_use]
    pub fn to_wire(self) -> u32 {
        self as u32
    }
}

/// The caller that a ticket names. The identity of a connection with security index 2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    /// First component of the name, in the ticket's case.
    pub name: String,
    /// Second component; empty if there is none.
    pub instance: String,
    /// The cell or realm, if it is not ours.
    pub cell: Option<String>,
    /// Version of the service key that sealed the ticket.
    pub kvno: u32,
    /// The protection of the connection's packets.
    pub level: Level,
    /// When the ticket ends; `u32::MAX`: never.
    pub expires: AfsTime,
    /// Whether the ticket was made by a holder of the cell's key (`-localauth`): a superuser.
    pub key_holder: bool,
}

impl Principal {
    /// The name in the form of the protection database: `user`, `user.instance` or `user@cell`, in
    /// lower case.
    #[must_use]
    pub fn vice_name(&self) -> String {
        let mut name = self.name.clone();
        if !self.instance.is_empty() {
            name.push('.');
            name.push_str(&self.instance);
        }
        if let Some(cell) = &self.cell {
            name.push('@');
            name.push_str(cell);
        }
        name.make_ascii_lowercase();
        name
    }
}
