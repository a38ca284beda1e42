//! Derives the 56 bits that rxkad uses from a ticket's session key ("rxkad-kdf").
//!
//! DES session keys are used as they are. Any other key is turned into a DES key by HMAC-MD5 over a
//! counter, a label and the length. Client and server both do this, and nothing on the wire shows
//! it. The first result that is not a weak DES key is used. Triple-DES keys first lose their parity
//! bits.

use hmac::{Hmac, KeyInit, Mac};
use md5::Md5;
use zeroize::Zeroizing;

use crate::fcrypt::BLOCK;

/// A session key for fcrypt.
pub(crate) type SessionKey = Zeroizing<[u8; BLOCK]>;

/// DES keys whose subkeys repeat, with odd parity. (fcrypt works with them; the derivation excludes
/// them.)
const WEAK: [u64; 16] = [
    0x0101_0101_0101_0101,
    0xfefe_fefe_fefe_fefe,
    0x1f1f_1f1f_0e0e_0e0e,
    0xe0e0_e0e0_f1f1_f1f1,
    0x011f_011f_010e_010e,
    0x1f01_1f01_0e01_0e01,
    0x01e0_01e0_01f1_01f1,
    0xe001_e001_f101_f101,
    0x01fe_01fe_01fe_01fe,
    0xfe01_fe01_fe01_fe01,
    0x1fe0_1fe0_0ef1_0ef1,
    0xe01f_e01f_f10e_f10e,
    0x1ffe_1ffe_0efe_0efe,
    0xfe1f_fe1f_fe0e_fe0e,
    0xe0fe_e0fe_f1fe_f1fe,
    0xfee0_fee0_fef1_fef1,
];

/// The session key of rxkad for one of encryption type `enctype`. `None` if the type has none, or
/// the key has the wrong length.
pub(crate) fn session_key(enctype: i32, key: &[u8]) -> Option<SessionKey> {
    match enctype {
        1..=3 => key.try_into().ok().map(Zeroizing::new),
        0 | 4 | 6 | 8..=15 => None,
        5 | 7 | 16 => derive(&without_parity(key)?),
        _ if key.len() >= 7 => derive(key),
        _ => None,
    }
}

/// A random session key for rxkad.
pub(crate) fn random_key() -> SessionKey {
    loop {
        let key = Zeroizing::new(rand::random::<[u8; BLOCK]>());
        if let Some(key) = strong(&key) {
            return key;
        }
    }
}

fn derive(key: &[u8]) -> Option<SessionKey> {
    (1..=u8::MAX).find_map(|counter| {
        let mut mac = Hmac::<Md5>::new_from_slice(key).ok()?;
        mac.update(&[counter]);
        mac.update(b"rxkad\0");
        mac.update(&64u32.to_be_bytes());
        let digest = Zeroizing::new(<[u8; 16]>::from(mac.finalize().into_bytes()));
        strong(digest.first_chunk()?)
    })
}

/// The key with odd parity, or `None` if it is a weak key.
fn strong(bytes: &[u8; BLOCK]) -> Option<SessionKey> {
    let odd = bytes.map(|byte| {
        let bits = byte & 0xfe;
        bits | u8::from(bits.count_ones().is_multiple_of(2))
    });
    let odd = Zeroizing::new(odd);
    (!WEAK.contains(&u64::from_be_bytes(*odd))).then_some(odd)
}

/// Turns each eight bytes into seven: bit j of the eighth byte replaces the parity bit of byte j.
fn without_parity(key: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
    let (groups, []) = key.as_chunks::<8>() else {
        return None;
    };
    if groups.len() != 3 {
        return None;
    }
    let mut shrunk = Zeroizing::new(Vec::with_capacity(21));
    for [bytes @ .., last] in groups {
        let mut bit = 0;
        shrunk.extend(bytes.map(|byte| {
            bit += 1;
            (byte & 0xfe) | ((last >> bit) & 1)
        }));
    }
    Some(shrunk)
}

#[cfg(test)]
mod tests {
    use hex_literal::hex;

    use super::*;

    #[test]
    fn derived_keys_have_their_known_answers() {
        let bytes: Vec<u8> = (0..32).collect();
        let long = session_key(18, &bytes).unwrap();
        assert_eq!(*long, hex!("b60db5e30b266b16"));
        let short = session_key(17, &bytes[..16]).unwrap();
        assert_eq!(*short, hex!("07838c58c11c64ab"));
    }

    #[test]
    fn des_keys_stay_and_unknown_types_are_refused() {
        let key = hex!("0123456789abcdef");
        assert_eq!(*session_key(3, &key).unwrap(), key);
        assert!(session_key(1, &key[..7]).is_none());
        assert!(session_key(8, &key).is_none());
        assert!(session_key(0, &key).is_none());
        assert!(session_key(18, &key[..6]).is_none());
        assert!(session_key(16, &[1; 23]).is_none());
        assert!(session_key(16, &[1; 24]).is_some());
    }

    #[test]
    fn parity_bits_make_room_for_the_eighth_byte() {
        let mut key = [0x55u8; 24];
        key[7] = 0b0000_0010;
        let shrunk = without_parity(&key).unwrap();
        assert_eq!(shrunk.len(), 21);
        assert_eq!(shrunk[..7], [0x55, 0x54, 0x54, 0x54, 0x54, 0x54, 0x54]);
    }

    #[test]
    fn weak_keys_are_skipped() {
        assert!(strong(&[0; 8]).is_none());
        assert!(strong(&[0xff; 8]).is_none());
        assert!(random_key().iter().all(|byte| byte.count_ones() % 2 == 1));
    }
}
