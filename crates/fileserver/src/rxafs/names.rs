//! What a name in a directory may be.
//!
//! Source: FS/CM specification; observed of OpenAFS 1.8's file server.

use cellar_wire::{AbortCode, AfsName};

use crate::abort_map::Refusal;

/// The longest name, bytes. One byte less than the wire carries.
const NAME_MAX: usize = 255;

/// A text without NUL: one with it is no text, and refused as what does not parse.
pub(super) fn text(bytes: &[u8]) -> Result<&[u8], Refusal> {
    if bytes.contains(&0) {
        Err(Refusal::Call(AbortCode::RXGEN_SS_UNMARSHAL))
    } else {
        Ok(bytes)
    }
}

/// A name that is to be made: not empty, `.` or `..`, without slash and NUL, and not ending in
/// `@sys`, which clients replace by the name of their system.
pub(super) fn new_name(name: &AfsName) -> Result<&[u8], Refusal> {
    let bytes = old_name(name)?;
    if bytes.ends_with(b"@sys") {
        Err(Refusal::Invalid)
    } else {
        Ok(bytes)
    }
}

/// A name that is to be found, to be removed or renamed.
pub(super) fn old_name(name: &AfsName) -> Result<&[u8], Refusal> {
    let bytes = name.as_bytes();
    if matches!(bytes, b"" | b"." | b"..") || bytes.iter().any(|&byte| matches!(byte, 0 | b'/')) {
        return Err(Refusal::Invalid);
    }
    if bytes.len() > NAME_MAX {
        Err(Refusal::NameTooLong)
    } else {
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        let name = |text: &[u8]| AfsName::try_from(text).unwrap();
        for bad in [&b""[..], b".", b"..", b"a/b", b"/", b"a\0", b"\0"] {
            assert!(
                matches!(old_name(&name(bad)), Err(Refusal::Invalid)),
                "{bad:?}"
            );
            assert!(
                matches!(new_name(&name(bad)), Err(Refusal::Invalid)),
                "{bad:?}"
            );
        }
        for good in [
            &b"a"[..],
            b"...",
            b" ",
            b"\xff\xfe",
            b"sys",
            b"@sysx",
            &[b'x'; 255],
        ] {
            assert_eq!(new_name(&name(good)).unwrap(), good);
        }
        assert!(matches!(
            new_name(&name(&[b'x'; 256])),
            Err(Refusal::NameTooLong)
        ));
        assert!(matches!(
            new_name(&name(b"bin.@sys")),
            Err(Refusal::Invalid)
        ));
        assert_eq!(old_name(&name(b"bin.@sys")).unwrap(), b"bin.@sys");
    }
}
