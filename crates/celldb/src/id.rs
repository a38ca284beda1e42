//! The id of a database.

use std::fmt;
use std::str::FromStr;

/// Identifies one database: made at random with the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatabaseId(u128);

impl DatabaseId {
    /// A new id.
    pub fn random() -> Self {
        Self(uuid::Uuid::new_v4().as_u128())
    }

    pub(crate) fn of_halves(high: u64, low: u64) -> Self {
        Self(u128::from(high) << 64 | u128::from(low))
    }

    pub(crate) fn halves(self) -> (u64, u64) {
        ((self.0 >> 64) as u64, self.0 as u64)
    }

    pub(crate) fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(u128::from_be_bytes(bytes))
    }

    pub(crate) fn to_bytes(self) -> [u8; 16] {
        self.0.to_be_bytes()
    }
}

impl fmt::Display for DatabaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl FromStr for DatabaseId {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_one = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let id = is_one
            .then(|| u128::from_str_radix(text, 16).ok())
            .flatten();
        id.map(Self).ok_or("not 32 hexadecimal digits")
    }
}
