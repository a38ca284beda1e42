//! Abort codes: the one number that tells a caller why its call failed.
//!
//! A call that fails has no results; it ends with an Rx abort that carries 32 bits. The number
//! belongs to one of these families, which its range alone tells apart:
//!
//! * negative: Rx itself, and the stubs (`RXGEN_*`);
//! * 1 to 511: errno numbers of Linux, but 101 to 120 are the file server's (`V*`);
//! * large: tables of 256, each with a base: VL, PT, VOLS, U (ubik), BZ, RXK, RXGK, UAE.
//!
//! UAE numbers ([`uae`]) are errno numbers that mean the same on every system. A file server sends
//! them only to hosts that announced that they understand them.

use std::fmt;

use cellar_xdr::{Decode, DecodeError, Decoder, Encode, Encoder};

use crate::uae;

mod codes;

/// Why a call failed, as the caller receives it. 0 is success and never travels as an abort.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct AbortCode(pub i32);

impl AbortCode {
    /// The code for a Linux errno number, as a plain number. See [`AbortCode::for_host`].
    pub const fn from_errno(errno: i32) -> Self {
        Self(errno)
    }

    /// The customary name, if the code is a known one.
    pub fn name(self) -> Option<&'static str> {
        self.entry()
            .map(|entry| entry.name)
            .or_else(|| uae::name(self))
            .or_else(|| {
                // Plain errno numbers share the names of their universal forms.
                uae::from_errno(self.0)
                    .and_then(uae::name)
                    .map(|name| &name["UA".len()..])
            })
    }

    /// The meaning of the code, as a sentence without a full stop.
    pub fn sentence(self) -> Option<&'static str> {
        self.entry().map(|entry| entry.sentence).or_else(|| {
            let errno = uae::to_errno(self).unwrap_or(self.0);
            uae::sentence(errno)
        })
    }

    /// The code as a file server sends it to one host. If the host understands universal errno
    /// codes, errno numbers become universal ones. Everything else stays as it is.
    pub fn for_host(self, understands_uae: bool) -> Self {
        let stays = self.0 <= 0
            || self.0 > 511
            || (101..=113).contains(&self.0)
            || self == Self::VRESTRICTED;
        if !understands_uae || stays {
            return self;
        }
        uae::from_errno(self.0).unwrap_or(self)
    }

    /// The code, with a universal errno turned back into the plain Linux number. Clients compare
    /// codes in this form.
    pub fn to_plain(self) -> Self {
        uae::to_errno(self).map_or(self, Self)
    }

    fn entry(self) -> Option<&'static codes::Entry> {
        codes::TABLE.iter().find(|entry| entry.code == self)
    }

    /// Every code that has a constant, with its name.
    pub fn all() -> impl Iterator<Item = (Self, &'static str)> {
        codes::TABLE.iter().map(|entry| (entry.code, entry.name))
    }
}

impl fmt::Debug for AbortCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{name}({})", self.0),
            None => write!(f, "AbortCode({})", self.0),
        }
    }
}

impl fmt::Display for AbortCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.sentence(), self.name()) {
            (Some(sentence), Some(name)) => write!(f, "{sentence} ({name}, {})", self.0),
            (None, Some(name)) => write!(f, "{name} ({})", self.0),
            _ => write!(f, "unknown code {}", self.0),
        }
    }
}

impl std::error::Error for AbortCode {}

impl From<i32> for AbortCode {
    fn from(code: i32) -> Self {
        Self(code)
    }
}

impl From<AbortCode> for i32 {
    fn from(code: AbortCode) -> Self {
        code.0
    }
}

impl Encode for AbortCode {
    fn encode(&self, out: &mut Encoder<'_>) {
        out.i32(self.0);
    }
}

impl Decode for AbortCode {
    const MIN_SIZE: usize = 4;

    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.i32().map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_constant_finds_its_own_name_and_sentence() {
        let mut seen = std::collections::BTreeMap::new();
        for (code, name) in AbortCode::all() {
            assert_eq!(code.name(), Some(name));
            assert!(
                code.sentence().is_some_and(|text| !text.ends_with('.')),
                "{name}"
            );
            assert_eq!(
                seen.insert(code, name),
                None,
                "{code:?} is in the table twice"
            );
        }
    }

    #[test]
    fn bases_are_those_of_the_tables() {
        for (code, number) in [
            (AbortCode::VL_NOENT, 363524),
            (AbortCode::VL_DBBAD, 363552),
            (AbortCode::PRNOENT, 267268),
            (AbortCode::PRNAMETOOLONG, 267282),
            (AbortCode::VOLSERVOLBUSY, 1492325133),
            (AbortCode::VOLSERFAILEDOP, 1492325137),
            (AbortCode::UNOQUORUM, 5376),
            (AbortCode::UDEADLOCK, 5402),
            (AbortCode::BZNOENT, 39425),
            (AbortCode::BZENCREQ, 39436),
            (AbortCode::RXKADEXPIRED, 19270409),
            (AbortCode::RXKADILLEGALLEVEL, 19270412),
            (AbortCode::RXGK_BAD_QOP, 1233242891),
        ] {
            assert_eq!(code.0, number, "{code:?}");
        }
    }

    #[test]
    fn errno_is_made_universal_only_for_hosts_that_ask() {
        assert_eq!(AbortCode::EACCES.for_host(false), AbortCode::EACCES);
        assert_eq!(AbortCode::EACCES.for_host(true), AbortCode(49733388));
        assert_eq!(AbortCode(49733388).to_plain(), AbortCode::EACCES);
        for kept in [
            AbortCode::VNOVNODE,
            AbortCode::VDISKFULL,
            AbortCode::VRESTRICTED,
            AbortCode::RXGEN_OPCODE,
            AbortCode::VICETOKENDEAD,
            AbortCode::VRESTARTING,
        ] {
            assert_eq!(kept.for_host(true), kept);
        }
    }

    #[test]
    fn shows_a_sentence_with_name_and_number() {
        assert_eq!(
            AbortCode::VNOVOL.to_string(),
            "the volume is not on this server (VNOVOL, 103)"
        );
        assert_eq!(
            AbortCode::EACCES.to_string(),
            "permission denied (EACCES, 13)"
        );
        assert_eq!(
            crate::afsvol::WRONG_BASE.to_string(),
            "the target is not in the state that the operation starts from (ESTALE, 116)"
        );
        assert_eq!(
            AbortCode(49733388).to_string(),
            "permission denied (UAEACCES, 49733388)"
        );
        assert_eq!(AbortCode(4711).to_string(), "unknown code 4711");
        assert_eq!(format!("{:?}", AbortCode(4711)), "AbortCode(4711)");
    }
}
