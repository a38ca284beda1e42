//! Encryption with Kerberos keys: RFC 3961 and 3962 (AES with SHA-1), 8009 (AES with SHA-2), 4757
//! (RC4).
//!
//! Libraries provide ciphers and hashes; this module combines them as Kerberos does. For each
//! purpose ("usage") two keys are derived, one to encrypt and one to authenticate. A random block
//! precedes the text. SHA-1 types and RC4 authenticate the plain text, SHA-2 types the sealed text.

use aes::cipher::{Array, BlockCipherDecrypt, BlockCipherEncrypt, StreamCipher};
use aes::{Aes128, Aes256};
use cts::{CbcCs3, Decrypt, Encrypt, KeyIvInit};
use hmac::{Hmac, KeyInit, Mac};
use md5::Md5;
use rc4::Rc4;
use sha1::Sha1;
use sha2::{Sha256, Sha384};
use zeroize::Zeroizing;

use crate::{Enctype, SecretKey};

/// The usage number of a ticket's encrypted part.
pub(crate) const USAGE_TICKET: u32 = 2;

/// Bytes of AES's block, and of the random block before the text.
const AES_BLOCK: usize = 16;
/// Bytes of RC4's random block; below, those of its authenticator.
const RC4_CONFOUNDER: usize = 8;
const RC4_MAC: usize = 16;

type Secret = Zeroizing<Vec<u8>>;

/// Opens `sealed`. Returns `None` if it was not sealed with that key for that usage.
pub(super) fn decrypt(key: &SecretKey, usage: u32, sealed: &[u8]) -> Option<Secret> {
    match key.enctype() {
        Enctype::Aes128Sha1 | Enctype::Aes256Sha1 => decrypt_sha1(key, usage, sealed),
        Enctype::Aes128Sha256 | Enctype::Aes256Sha384 => decrypt_sha2(key, usage, sealed),
        Enctype::Arcfour => decrypt_rc4(key, usage, sealed),
    }
}

/// Seals `plain` with a fresh random block.
pub(super) fn encrypt(key: &SecretKey, usage: u32, plain: &[u8]) -> Option<Vec<u8>> {
    encrypt_with(key, usage, &rand::random(), plain)
}

fn encrypt_with(
    key: &SecretKey,
    usage: u32,
    confounder: &[u8; AES_BLOCK],
    plain: &[u8],
) -> Option<Vec<u8>> {
    let enctype = key.enctype();
    let confounder = match enctype {
        Enctype::Arcfour => confounder.get(..RC4_CONFOUNDER)?,
        _ => confounder,
    };
    let mut text = Zeroizing::new([confounder, plain].concat());
    let sealed = match enctype {
        Enctype::Aes128Sha1 | Enctype::Aes256Sha1 => {
            let (encrypting, authenticating) = keys_sha1(key, usage);
            let tag = hmac::<Hmac<Sha1>>(&authenticating, &[&text])?;
            cts_encrypt(&encrypting, &mut text)?;
            [text.as_slice(), tag.get(..12)?].concat()
        }
        Enctype::Aes128Sha256 | Enctype::Aes256Sha384 => {
            let (encrypting, authenticating) = keys_sha2(key, usage)?;
            cts_encrypt(&encrypting, &mut text)?;
            let tag = tag_sha2(enctype, &authenticating, &text)?;
            [text.as_slice(), &tag].concat()
        }
        Enctype::Arcfour => {
            let outer = hmac::<Hmac<Md5>>(key.expose(), &[&usage.to_le_bytes()])?;
            let tag = hmac::<Hmac<Md5>>(&outer, &[&text])?;
            rc4(&hmac::<Hmac<Md5>>(&outer, &[&tag])?, &mut text)?;
            [tag.as_slice(), &text].concat()
        }
    };
    Some(sealed)
}

fn decrypt_sha1(key: &SecretKey, usage: u32, sealed: &[u8]) -> Option<Secret> {
    const TAG: usize = 12;
    let (sealed, tag) = sealed.split_at_checked(sealed.len().checked_sub(TAG)?)?;
    let (encrypting, authenticating) = keys_sha1(key, usage);
    let mut text = Zeroizing::new(sealed.to_vec());
    cts_decrypt(&encrypting, &mut text)?;
    verify::<Hmac<Sha1>>(&authenticating, &[&text], tag)?;
    without_confounder(&text, AES_BLOCK)
}

fn decrypt_sha2(key: &SecretKey, usage: u32, sealed: &[u8]) -> Option<Secret> {
    let enctype = key.enctype();
    let length = tag_length_sha2(enctype);
    let (sealed, tag) = sealed.split_at_checked(sealed.len().checked_sub(length)?)?;
    let (encrypting, authenticating) = keys_sha2(key, usage)?;
    let parts: [&[u8]; 2] = [&[0; AES_BLOCK], sealed];
    match enctype {
        Enctype::Aes128Sha256 => verify::<Hmac<Sha256>>(&authenticating, &parts, tag)?,
        _ => verify::<Hmac<Sha384>>(&authenticating, &parts, tag)?,
    }
    let mut text = Zeroizing::new(sealed.to_vec());
    cts_decrypt(&encrypting, &mut text)?;
    without_confounder(&text, AES_BLOCK)
}

fn decrypt_rc4(key: &SecretKey, usage: u32, sealed: &[u8]) -> Option<Secret> {
    let (tag, sealed) = sealed.split_at_checked(RC4_MAC)?;
    let outer = hmac::<Hmac<Md5>>(key.expose(), &[&usage.to_le_bytes()])?;
    let mut text = Zeroizing::new(sealed.to_vec());
    rc4(&hmac::<Hmac<Md5>>(&outer, &[tag])?, &mut text)?;
    verify::<Hmac<Md5>>(&outer, &[&text], tag)?;
    without_confounder(&text, RC4_CONFOUNDER)
}

fn without_confounder(text: &[u8], length: usize) -> Option<Secret> {
    Some(Zeroizing::new(text.get(length..)?.to_vec()))
}

/// The usage and the purpose of the derived key: 0xAA to encrypt, 0x55 to authenticate.
fn purpose(usage: u32, what: u8) -> [u8; 5] {
    let [a, b, c, d] = usage.to_be_bytes();
    [a, b, c, d, what]
}

fn keys_sha1(key: &SecretKey, usage: u32) -> (Secret, Secret) {
    let derive = |what| derive_aes(key.expose(), &purpose(usage, what));
    (derive(0xaa), derive(0x55))
}

/// RFC 3961, DK: the constant, folded to a block and encrypted repeatedly.
fn derive_aes(key: &[u8], constant: &[u8]) -> Secret {
    let mut block = n_fold(constant);
    let mut derived = Zeroizing::new(Vec::with_capacity(key.len() + AES_BLOCK));
    while derived.len() < key.len() {
        encrypt_block(key, &mut block);
        derived.extend_from_slice(&*block);
    }
    derived.truncate(key.len());
    derived
}

/// RFC 3961, n-fold to 128 bits. The input is repeated until its length is a multiple of the
/// output's; each repetition is rotated by 13 more bits. The pieces are added with end-around
/// carry.
fn n_fold(input: &[u8]) -> Zeroizing<[u8; AES_BLOCK]> {
    let bits = input.len() * 8;
    let total = lcm(input.len(), AES_BLOCK);
    // Byte `at` of the repeated, rotated input.
    let byte = |at: usize| -> u8 {
        let rotation = 13 * (at / input.len());
        let first = (at % input.len()) * 8 + bits * 13 - rotation % bits;
        (0..8).fold(0, |byte, offset| {
            let bit = (first + offset) % bits;
            let set = input
                .get(bit / 8)
                .is_some_and(|b| b >> (7 - bit % 8) & 1 == 1);
            byte << 1 | u8::from(set)
        })
    };
    let sum = (0..total / AES_BLOCK).fold(0u128, |sum, piece| {
        let mut bytes = [0; AES_BLOCK];
        for (offset, slot) in bytes.iter_mut().enumerate() {
            *slot = byte(piece * AES_BLOCK + offset);
        }
        let (sum, carry) = sum.overflowing_add(u128::from_be_bytes(bytes));
        sum.wrapping_add(u128::from(carry))
    });
    Zeroizing::new(sum.to_be_bytes())
}

fn lcm(a: usize, b: usize) -> usize {
    let (mut x, mut y) = (a, b);
    while y != 0 {
        (x, y) = (y, x % y);
    }
    a / x * b
}

fn encrypt_block(key: &[u8], block: &mut [u8; AES_BLOCK]) {
    let mut array = Array::from(*block);
    if let Ok(cipher) = Aes256::new_from_slice(key) {
        cipher.encrypt_block(&mut array);
    } else if let Ok(cipher) = Aes128::new_from_slice(key) {
        cipher.encrypt_block(&mut array);
    }
    *block = array.into();
}

fn decrypt_block(key: &[u8], block: &mut [u8; AES_BLOCK]) {
    let mut array = Array::from(*block);
    if let Ok(cipher) = Aes256::new_from_slice(key) {
        cipher.decrypt_block(&mut array);
    } else if let Ok(cipher) = Aes128::new_from_slice(key) {
        cipher.decrypt_block(&mut array);
    }
    *block = array.into();
}

fn keys_sha2(key: &SecretKey, usage: u32) -> Option<(Secret, Secret)> {
    let enctype = key.enctype();
    let derive = |what, length: usize| {
        let constant = purpose(usage, what);
        let bits = u32::try_from(length * 8).ok()?.to_be_bytes();
        let parts: [&[u8]; 4] = [&[0, 0, 0, 1], &constant, &[0], &bits];
        let mut derived = match enctype {
            Enctype::Aes128Sha256 => hmac::<Hmac<Sha256>>(key.expose(), &parts)?,
            _ => hmac::<Hmac<Sha384>>(key.expose(), &parts)?,
        };
        derived.truncate(length);
        Some(derived)
    };
    Some((
        derive(0xaa, enctype.key_length())?,
        derive(0x55, tag_length_sha2(enctype))?,
    ))
}

fn tag_length_sha2(enctype: Enctype) -> usize {
    match enctype {
        Enctype::Aes128Sha256 => 16,
        _ => 24,
    }
}

fn tag_sha2(enctype: Enctype, key: &[u8], sealed: &[u8]) -> Option<Secret> {
    let parts: [&[u8]; 2] = [&[0; AES_BLOCK], sealed];
    let mut tag = match enctype {
        Enctype::Aes128Sha256 => hmac::<Hmac<Sha256>>(key, &parts)?,
        _ => hmac::<Hmac<Sha384>>(key, &parts)?,
    };
    tag.truncate(tag_length_sha2(enctype));
    Some(tag)
}

/// CBC with ciphertext stealing, starting with a zero block. A single block is just encrypted (RFC
/// 3962, 5); the library's mode does not do that.
fn cts_encrypt(key: &[u8], text: &mut [u8]) -> Option<()> {
    let iv = [0; AES_BLOCK];
    if let Ok(block) = <&mut [u8; AES_BLOCK]>::try_from(&mut *text) {
        encrypt_block(key, block);
        Some(())
    } else if key.len() == 32 {
        let cipher = CbcCs3::<Aes256>::new_from_slices(key, &iv).ok()?;
        cipher.encrypt(text).ok()
    } else {
        let cipher = CbcCs3::<Aes128>::new_from_slices(key, &iv).ok()?;
        cipher.encrypt(text).ok()
    }
}

fn cts_decrypt(key: &[u8], text: &mut [u8]) -> Option<()> {
    let iv = [0; AES_BLOCK];
    if let Ok(block) = <&mut [u8; AES_BLOCK]>::try_from(&mut *text) {
        decrypt_block(key, block);
        Some(())
    } else if key.len() == 32 {
        let cipher = CbcCs3::<Aes256>::new_from_slices(key, &iv).ok()?;
        cipher.decrypt(text).ok()
    } else {
        let cipher = CbcCs3::<Aes128>::new_from_slices(key, &iv).ok()?;
        cipher.decrypt(text).ok()
    }
}

fn rc4(key: &[u8], text: &mut [u8]) -> Option<()> {
    Rc4::new_from_slice(key).ok()?.apply_keystream(text);
    Some(())
}

fn hmac<M: Mac + KeyInit>(key: &[u8], parts: &[&[u8]]) -> Option<Secret> {
    let mut mac = <M as KeyInit>::new_from_slice(key).ok()?;
    parts.iter().for_each(|part| mac.update(part));
    Some(Zeroizing::new(mac.finalize().into_bytes().to_vec()))
}

/// Compares in constant time.
fn verify<M: Mac + KeyInit>(key: &[u8], parts: &[&[u8]], tag: &[u8]) -> Option<()> {
    let mut mac = <M as KeyInit>::new_from_slice(key).ok()?;
    parts.iter().for_each(|part| mac.update(part));
    mac.verify_truncated_left(tag).ok()
}

#[cfg(test)]
mod tests;
