//! The rules for names in a directory.
//!
//! An invalid name is refused at once. Some valid names are taken (`.` and `..`) or can never
//! exist. These are refused only at the lookup, so that a caller without the right to look learns
//! nothing.
//!
//! Source: FS/CM specification; observed of OpenAFS 1.8's file server.

use cellar_volume::Error;
use cellar_wire::{AbortCode, AfsName};

use crate::abort_map::Refusal;

/// The longest name in bytes, one byte less than the wire carries.
const NAME_MAX: usize = 255;

/// A text without NUL. A text with NUL is refused like undecodable arguments.
pub(super) fn text(bytes: &[u8]) -> Result<&[u8], Refusal> {
    if bytes.contains(&0) {
        Err(Refusal::Call(AbortCode::RXGEN_SS_UNMARSHAL))
    } else {
        Ok(bytes)
    }
}

/// A name for a new entry. It must not contain a slash, nor end in `@sys`, which clients replace by
/// the name of their system.
pub(super) fn new_name(name: &AfsName) -> Result<&[u8], Refusal> {
    let bytes = old_name(name)?;
    if bytes.contains(&b'/') || bytes.ends_with(b"@sys") {
        Err(Refusal::Invalid)
    } else {
        Ok(bytes)
    }
}

/// A name to look up, to remove or to rename.
pub(super) fn old_name(name: &AfsName) -> Result<&[u8], Refusal> {
    let bytes = text(name.as_bytes())?;
    if bytes.len() > NAME_MAX {
        Err(Refusal::NameTooLong)
    } else {
        Ok(bytes)
    }
}

/// Checks that the name is not one that every directory has: `.` or `..`.
pub(super) fn check_free(name: &[u8]) -> Result<(), Refusal> {
    match name {
        b"." | b".." => Err(Refusal::Store(Error::Exists)),
        _ => Ok(()),
    }
}

/// Checks that an entry can have the name.
pub(super) fn check_possible(name: &[u8]) -> Result<(), Refusal> {
    if name.is_empty() || name.contains(&b'/') {
        Err(Refusal::Store(Error::NotFound))
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &[u8]) -> AfsName {
        AfsName::try_from(text).unwrap()
    }

    #[test]
    fn an_impossible_name_is_refused_at_once() {
        for good in [&b"a"[..], b"...", b" ", b"\xff\xfe", b"@sysx", &[b'x'; 255]] {
            assert_eq!(new_name(&name(good)).unwrap(), good);
            assert_eq!(old_name(&name(good)).unwrap(), good);
        }
        for bad in [&b"a/b"[..], b"/", b"@sys", b"bin.@sys"] {
            assert!(matches!(new_name(&name(bad)), Err(Refusal::Invalid)));
            assert_eq!(old_name(&name(bad)).unwrap(), bad);
        }
        for long in [new_name(&name(&[b'x'; 256])), old_name(&name(&[b'x'; 256]))] {
            assert!(matches!(long, Err(Refusal::NameTooLong)));
        }
        for nul in [&b"a\0b"[..], b"\0"] {
            let unparsed = Refusal::Call(AbortCode::RXGEN_SS_UNMARSHAL).code(true);
            assert_eq!(new_name(&name(nul)).unwrap_err().code(true), unparsed);
            assert_eq!(old_name(&name(nul)).unwrap_err().code(true), unparsed);
        }
    }

    #[test]
    fn impossible_names_are_not_found() {
        assert!(check_free(b"a").is_ok() && check_possible(b"a").is_ok());
        assert!(check_free(b"..").is_err() && check_possible(b"..").is_ok());
        assert!(check_possible(b"").is_err() && check_possible(b"a/b").is_err());
    }
}
