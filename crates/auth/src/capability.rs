//! Capabilities: they let a client of the cell access one object of one device for some minutes.
//!
//! Form: a byte 1, the version and encryption type of the cell's key that sealed it, the number of
//! the device, a nonce, and the sealed body. Version and type 0, 0 mean the key in the file
//! `OsdKey`. The fields before the nonce are authenticated together with the body.
//!
//! 1. *The key.* HKDF-SHA256 (RFC 5869) over the cell's newest service key, with the cell's name as
//!    context. A cell without Kerberos has a file `OsdKey` of 32 random bytes that its servers
//!    share. A retired key opens no capability any more.
//! 2. *The seal.* XChaCha20-Poly1305. Its nonces are long enough that servers which share a key can
//!    draw them at random for ever, without a counter.
//! 3. *The check.* The holder of a capability may do what it allows, from the addresses that it
//!    names, until it expires. Half a minute is added because clocks may disagree. Refusals are
//!    counted by reason.

use std::net::IpAddr;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::BytesMut;
use cellar_wire::object::{Capability, CapabilityBody, MAY_ALL, MAY_READ, MAY_WRITE, ObjectId};
use cellar_wire::{AfsString, Decode, Decoder, Encode, Encoder};
use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use hmac::{Hmac, Mac};
use rand::RngCore;
use sha2::Sha256;
use zeroize::Zeroizing;

use crate::bytes::{take, take_array, take_u32};
use crate::file::{self, Watched};
use crate::{Authority, Error, Result};

/// The file of a cell without Kerberos keys, in the server's configuration directory.
pub const KEY_FILE: &str = "OsdKey";
/// Seconds by which the clocks of a cell may differ.
pub const SKEW: u64 = 30;
const FORM: u8 = 1;
const KEY_BYTES: usize = 32;
const NONCE_BYTES: usize = 24;
/// Bytes before the nonce: form, key version, encryption type, device.
const CLEAR_BYTES: usize = 13;
const SALT: &[u8] = b"cellar object storage capability";

/// Why a capability does not allow a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Refused {
    /// No server of this cell sealed it, or it was changed afterwards.
    #[error("the capability was not made by a server of this cell, or was changed")]
    Tampered,
    /// It was sealed with a key that this server does not have (any more).
    #[error("the capability was sealed with a key that is not known here")]
    UnknownKey,
    /// It is for another device.
    #[error("the capability is for another OSD")]
    OtherOsd,
    /// It is for another object.
    #[error("the capability is for another object")]
    OtherObject,
    /// It does not give that right.
    #[error("the capability does not give that right")]
    OtherRights,
    /// It is for another version of the object.
    #[error("the capability is for another version")]
    OtherVersion,
    /// It is for other bytes of the object.
    #[error("the capability is for other bytes")]
    OtherRange,
    /// It has expired.
    #[error("the capability has expired")]
    Expired,
    /// It was given to another machine.
    #[error("the capability was given to another client")]
    OtherClient,
}

impl Refused {
    /// Every reason, with its name among a server's figures.
    pub const ALL: [(Self, &str); 9] = [
        (Self::Tampered, "refused_tampered"),
        (Self::UnknownKey, "refused_unknown_key"),
        (Self::OtherOsd, "refused_other_osd"),
        (Self::OtherObject, "refused_other_object"),
        (Self::OtherRights, "refused_other_rights"),
        (Self::OtherVersion, "refused_other_version"),
        (Self::OtherRange, "refused_other_range"),
        (Self::Expired, "refused_expired"),
        (Self::OtherClient, "refused_other_client"),
    ];
}

/// An operation on an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Read bytes of a version: the base of the capability. If the capability also allows writing,
    /// the new version may be read too.
    Read {
        /// The version.
        version: u64,
        /// First byte.
        begin: u64,
        /// The byte after the last one.
        end: u64,
    },
    /// Write bytes of the new version.
    Write {
        /// The version from which it is made; 0: the object is created.
        base: u64,
        /// The version.
        version: u64,
        /// First byte.
        begin: u64,
        /// The byte after the last one.
        end: u64,
    },
    /// Read the properties of the object; any right suffices.
    Examine,
    /// Operations of servers of the cell.
    All,
}

/// A request that a capability must allow.
#[derive(Clone, Copy, Debug)]
pub struct CapabilityRequest {
    /// The device.
    pub osd: u32,
    /// The object. Ignored for [`Act::All`].
    pub object: ObjectId,
    /// The operation.
    pub act: Act,
    /// The address of the caller.
    pub client: IpAddr,
    /// The current time, seconds since 1970.
    pub now: u64,
}

/// A key in its file; `None`: there is no file.
#[derive(Default)]
struct FileKey(Option<Zeroizing<[u8; KEY_BYTES]>>);

impl FileKey {
    fn parse(path: &Path, bytes: &[u8]) -> Result<Self> {
        let key = <[u8; KEY_BYTES]>::try_from(bytes);
        let key = key.map_err(|_| Error::malformed(path, "does not have 32 bytes"))?;
        Ok(Self(Some(Zeroizing::new(key))))
    }
}

/// The keys that seal and open capabilities, and the counts of refusals.
pub struct CapabilityKeys {
    authority: Authority,
    file: Watched<FileKey>,
    refused: [AtomicU64; Refused::ALL.len()],
}

impl std::fmt::Debug for CapabilityKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CapabilityKeys({})", self.authority.cell())
    }
}

/// Creates `OsdKey` in a configuration directory if it is missing. Returns whether it was created.
///
/// # Errors
/// [`Error::File`].
pub fn make_key_file(directory: &Path) -> Result<bool> {
    let path = directory.join(KEY_FILE);
    if path.exists() {
        return Ok(false);
    }
    let mut key = Zeroizing::new([0; KEY_BYTES]);
    rand::rng().fill_bytes(&mut *key);
    file::replace(&path, &*key)?;
    Ok(true)
}

impl CapabilityKeys {
    /// The keys of a server with that configuration directory. Files are checked for changes at
    /// each use.
    ///
    /// # Errors
    /// [`Error::File`], [`Error::Malformed`].
    pub fn open(directory: &Path, authority: &Authority) -> Result<Self> {
        Ok(Self {
            authority: authority.clone(),
            file: Watched::open(directory.join(KEY_FILE), FileKey::parse)?,
            refused: Default::default(),
        })
    }

    /// Seals a capability for the device that it names. The cell in `body` is ignored: the
    /// capability is for this cell.
    ///
    /// # Errors
    /// [`Error::NoKey`].
    pub fn seal(&self, body: &CapabilityBody) -> Result<Capability> {
        let (kvno, enctype, key) = match self.authority.keys().newest() {
            Some((info, key)) => {
                let derived = self.derive(key.expose());
                (info.kvno, info.enctype.number(), derived)
            }
            None => (0, 0, self.file_key().ok_or(Error::NoKey)?),
        };
        let mut sealed = Vec::with_capacity(256);
        sealed.push(FORM);
        sealed.extend_from_slice(&kvno.to_be_bytes());
        sealed.extend_from_slice(&enctype.to_be_bytes());
        sealed.extend_from_slice(&body.osd.to_be_bytes());
        let mut nonce = [0; NONCE_BYTES];
        rand::rng().fill_bytes(&mut nonce);
        // The key determines the cell. Without the name the body always fits.
        let nameless = CapabilityBody {
            cell: AfsString::default(),
            ..body.clone()
        };
        let mut plain = BytesMut::with_capacity(512);
        nameless.encode(&mut Encoder::new(&mut plain));
        let payload = Payload {
            msg: &plain,
            aad: &sealed,
        };
        let cipher = XChaCha20Poly1305::new((&*key).into());
        let secret = cipher.encrypt(&XNonce::from(nonce), payload);
        let secret = secret.map_err(|_| Error::NoKey)?;
        sealed.extend_from_slice(&nonce);
        sealed.extend_from_slice(&secret);
        Capability::new(sealed).map_err(|_| Error::NoKey)
    }

    /// Opens a capability for `osd`. Does not check whether it allows a request:
    /// [`CapabilityKeys::admit`] does, and also counts refusals.
    ///
    /// # Errors
    /// [`Refused::Tampered`], [`Refused::UnknownKey`], [`Refused::OtherOsd`].
    pub fn unseal(&self, capability: &Capability, osd: u32) -> Result<CapabilityBody, Refused> {
        let mut rest = capability.as_ref();
        let clear = take(&mut rest, CLEAR_BYTES).ok_or(Refused::Tampered)?;
        let (&form, mut words) = clear.split_first().ok_or(Refused::Tampered)?;
        let mut word = || take_u32(&mut words).ok_or(Refused::Tampered);
        let (kvno, enctype, of) = (word()?, word()?, word()?);
        if form != FORM {
            return Err(Refused::Tampered);
        }
        let nonce: [u8; NONCE_BYTES] = take_array(&mut rest).ok_or(Refused::Tampered)?;
        let key = match (kvno, enctype) {
            (0, 0) => self.file_key(),
            _ => {
                let key = self.authority.keys().find(kvno, enctype as i32);
                key.map(|key| self.derive(key.expose()))
            }
        };
        let key = key.ok_or(Refused::UnknownKey)?;
        let payload = Payload {
            msg: rest,
            aad: clear,
        };
        let cipher = XChaCha20Poly1305::new((&*key).into());
        let plain = cipher.decrypt(&XNonce::from(nonce), payload);
        let plain = plain.map_err(|_| Refused::Tampered)?;
        let mut body =
            CapabilityBody::decode(&mut Decoder::new(&plain)).map_err(|_| Refused::Tampered)?;
        if of != osd || body.osd != osd {
            return Err(Refused::OtherOsd);
        }
        body.cell = AfsString::new(self.authority.cell().to_owned()).unwrap_or_default();
        Ok(body)
    }

    /// Opens a capability and checks that it allows the request. Refusals are counted.
    ///
    /// # Errors
    /// The first reason to refuse.
    pub fn admit(
        &self,
        capability: &Capability,
        asked: &CapabilityRequest,
    ) -> Result<CapabilityBody, Refused> {
        let opened = self.unseal(capability, asked.osd);
        let admitted = opened.and_then(|body| check(&body, asked).map(|()| body));
        if let Err(refused) = &admitted {
            let place = Refused::ALL
                .iter()
                .position(|(reason, _)| reason == refused);
            if let Some(counter) = place.and_then(|place| self.refused.get(place)) {
                counter.fetch_add(1, Ordering::Relaxed);
            }
        }
        admitted
    }

    /// The number of refusals, by reason.
    pub fn refused(&self) -> impl Iterator<Item = (Refused, &'static str, u64)> + '_ {
        let counted = self
            .refused
            .iter()
            .map(|count| count.load(Ordering::Relaxed));
        let reasons = Refused::ALL.into_iter();
        reasons
            .zip(counted)
            .map(|((reason, name), count)| (reason, name, count))
    }

    fn file_key(&self) -> Option<Zeroizing<[u8; KEY_BYTES]>> {
        let file = self.file.get();
        file.0.as_ref().map(|key| self.derive(&key[..]))
    }

    /// HKDF-SHA256 with one block of output.
    fn derive(&self, secret: &[u8]) -> Zeroizing<[u8; KEY_BYTES]> {
        let extracted = Zeroizing::new(mac(SALT, &[secret]));
        Zeroizing::new(mac(&*extracted, &[self.authority.cell().as_bytes(), &[1]]))
    }
}

fn mac(key: &[u8], parts: &[&[u8]]) -> [u8; KEY_BYTES] {
    // HMAC takes a key of any length.
    let Ok(mut mac) = <Hmac<Sha256> as KeyInit>::new_from_slice(key) else {
        return [0; KEY_BYTES];
    };
    for part in parts {
        mac.update(part);
    }
    mac.finalize().into_bytes().into()
}

/// The device that a capability names. The name is not verified here.
#[must_use]
pub fn device_of(capability: &Capability) -> Option<u32> {
    let bytes: &[u8] = capability;
    let mut word = bytes.get(9..CLEAR_BYTES)?;
    take_u32(&mut word)
}

/// An address in the form of capabilities: IPv4 ones mapped.
#[must_use]
pub fn address_words(address: IpAddr) -> [u32; 4] {
    let bits = match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().to_bits(),
        IpAddr::V6(v6) => v6.to_bits(),
    };
    [96, 64, 32, 0].map(|shift| (bits >> shift) as u32)
}

/// Checks whether a capability allows the request.
fn check(body: &CapabilityBody, asked: &CapabilityRequest) -> Result<(), Refused> {
    if asked.now > body.expires.saturating_add(SKEW) {
        return Err(Refused::Expired);
    }
    if !body.clients.is_empty() && !body.clients.contains(&address_words(asked.client)) {
        return Err(Refused::OtherClient);
    }
    if body.rights & MAY_ALL != 0 {
        return Ok(());
    }
    let has = |right| body.rights & right == right;
    if asked.act == Act::All {
        return Err(Refused::OtherRights);
    }
    if body.object != asked.object {
        return Err(Refused::OtherObject);
    }
    let (begin, end) = match asked.act {
        Act::All => return Err(Refused::OtherRights),
        Act::Examine if has(MAY_READ) || has(MAY_WRITE) => return Ok(()),
        Act::Examine => return Err(Refused::OtherRights),
        Act::Read { .. } if !has(MAY_READ) => return Err(Refused::OtherRights),
        Act::Read {
            version,
            begin,
            end,
        } => {
            if version != body.base && !(has(MAY_WRITE) && version == body.version) {
                return Err(Refused::OtherVersion);
            }
            (begin, end)
        }
        Act::Write { .. } if !has(MAY_WRITE) => return Err(Refused::OtherRights),
        Act::Write {
            base,
            version,
            begin,
            end,
        } => {
            if base != body.base || version != body.version {
                return Err(Refused::OtherVersion);
            }
            (begin, end)
        }
    };
    if begin < body.begin || end > body.end || begin > end {
        return Err(Refused::OtherRange);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
