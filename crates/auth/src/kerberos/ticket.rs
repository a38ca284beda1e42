//! Tickets: servers read them, and holders of the cell's key make them.
//!
//! A client may send the whole ticket, or (kvno 213, shorter) only its encrypted part. Both name
//! the key that sealed it, by version and encryption type. The contents come from the KDC or from
//! another holder of the key, and are trusted.

use std::time::Duration;

use der::asn1::{Application, BitStringRef, GeneralizedTime, OctetStringRef};
use der::{Decode, Encode, Reader, SliceReader, TagMode};
use zeroize::Zeroizing;

use super::asn1::{
    ENC_TICKET_PART, EncTicketPart, EncryptedData, EncryptionKey, KerberosString, PrincipalName,
    TICKET, Ticket, TransitedEncoding,
};
use super::crypt::{self, USAGE_TICKET};
use super::names;
use crate::kdf::{self, SessionKey};
use crate::{Error, Result, SecretKey};

/// The number of the ticket flag *invalid*: postdated and not yet validated.
const FLAG_INVALID: usize = 7;
/// DES, the type of the session keys made here: eight bytes that need no derivation.
const SESSION_DES: i32 = 1;
/// A principal of the ordinary kind.
const NAME_PRINCIPAL: i32 = 1;
/// The end of tickets made by holders of the key: the last second that AFS can express. AFS servers
/// take it for *never* (`NEVERDATE`). Such a ticket ends when the key is retired.
pub(crate) const NEVER: u32 = u32::MAX;

/// The contents of an opened ticket.
pub(crate) struct Opened {
    pub(crate) name: String,
    pub(crate) instance: String,
    /// Empty for a ticket that a holder of the key made.
    pub(crate) realm: String,
    pub(crate) session_key: SessionKey,
    /// Unix time, seconds; 0: always.
    pub(crate) starts: u32,
    /// Unix time, seconds.
    pub(crate) ends: u32,
    /// The version of the key that sealed it.
    pub(crate) kvno: u32,
    /// Postdated and not yet validated.
    pub(crate) invalid: bool,
}

/// Why a ticket was not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// There is no such key.
    UnknownKey,
    /// Its form or its seal is wrong, or it has a name that AFS cannot have.
    Bad,
}

pub(crate) type Outcome = std::result::Result<Opened, Refusal>;

fn bad<E>(_: E) -> Refusal {
    Refusal::Bad
}

/// Opens a whole ticket with the key that `find` returns for (version, encryption type).
pub(crate) fn open_ticket(
    bytes: &[u8],
    allow_dots: bool,
    find: impl FnOnce(u32, i32) -> Option<SecretKey>,
) -> Outcome {
    let ticket = parse_ticket(bytes).ok_or(Refusal::Bad)?;
    open(&ticket.enc_part, allow_dots, find)
}

/// Opens a ticket's encrypted part.
pub(crate) fn open_encrypted_part(
    bytes: &[u8],
    allow_dots: bool,
    find: impl FnOnce(u32, i32) -> Option<SecretKey>,
) -> Outcome {
    let part = EncryptedData::from_der(bytes).map_err(bad)?;
    open(&part, allow_dots, find)
}

/// The encrypted part of a whole ticket, as a separate message.
pub(crate) fn encrypted_part(ticket: &[u8]) -> Result<Vec<u8>> {
    let ticket = parse_ticket(ticket).ok_or(Error::Ticket("is not in a form of Kerberos 5"))?;
    ticket
        .enc_part
        .to_der()
        .map_err(|_| Error::Ticket("is too long"))
}

/// Encryption type and version of the key that sealed a ticket. Takes a ticket in DER, or its
/// encrypted part alone (as in a token). `None` if it is neither.
#[must_use]
pub fn sealed_with(bytes: &[u8]) -> Option<(i32, Option<u32>)> {
    let part = match parse_ticket(bytes) {
        Some(ticket) => ticket.enc_part,
        None => EncryptedData::from_der(bytes).ok()?,
    };
    Some((part.etype, part.kvno))
}

fn parse_ticket(bytes: &[u8]) -> Option<Ticket<'_>> {
    let mut reader = SliceReader::new(bytes).ok()?;
    let ticket: Application<Ticket<'_>> =
        Application::decode_explicit(&mut reader, TICKET).ok()??;
    reader.finish().ok()?;
    (ticket.value.tkt_vno == 5).then_some(ticket.value)
}

fn open(
    part: &EncryptedData<'_>,
    allow_dots: bool,
    find: impl FnOnce(u32, i32) -> Option<SecretKey>,
) -> Outcome {
    let kvno = part.kvno.unwrap_or(0);
    let key = find(kvno, part.etype).ok_or(Refusal::UnknownKey)?;
    let plain = crypt::decrypt(&key, USAGE_TICKET, part.cipher.as_bytes()).ok_or(Refusal::Bad)?;
    read_content(&plain, allow_dots, kvno)
}

/// Reads contents that were sealed with key version `kvno`.
pub(crate) fn read_content(plain: &[u8], allow_dots: bool, kvno: u32) -> Outcome {
    let mut reader = SliceReader::new(plain).map_err(bad)?;
    // Bytes after the contents are padding.
    let content: Application<EncTicketPart<'_>> =
        Application::decode_explicit(&mut reader, ENC_TICKET_PART)
            .map_err(bad)?
            .ok_or(Refusal::Bad)?;
    let content = content.value;
    let components = content.cname.name_string.iter();
    let components: Vec<&[u8]> = components.map(|component| component.0).collect();
    let (name, instance) = names::from_components(&components, allow_dots).ok_or(Refusal::Bad)?;
    let key = &content.key;
    Ok(Opened {
        name,
        instance,
        realm: names::text(content.crealm.0).ok_or(Refusal::Bad)?,
        session_key: kdf::session_key(key.keytype, key.keyvalue.as_bytes()).ok_or(Refusal::Bad)?,
        starts: seconds(content.starttime.unwrap_or(content.authtime)),
        ends: seconds(content.endtime),
        kvno,
        invalid: content.flags.get(FLAG_INVALID) == Some(true),
    })
}

fn seconds(time: GeneralizedTime) -> u32 {
    u32::try_from(time.to_unix_duration().as_secs()).unwrap_or(u32::MAX)
}

/// Makes the encrypted part of a ticket that proves possession of the cell's key. Its client is
/// `afs` of the empty realm. It is valid from 1970 without end ([`NEVER`]).
pub(crate) fn mint(key: &SecretKey, kvno: u32, session_key: &SessionKey) -> Result<Vec<u8>> {
    let failed = |_| Error::Ticket("cannot be made");
    let content = Application {
        tag_number: ENC_TICKET_PART,
        tag_mode: TagMode::Explicit,
        value: EncTicketPart {
            // As in OpenAFS: only "the transited realms were checked".
            flags: BitStringRef::from_bytes(&[0, 8, 0, 0]).map_err(failed)?,
            key: EncryptionKey {
                keytype: SESSION_DES,
                keyvalue: OctetStringRef::new(session_key.as_slice()).map_err(failed)?,
            },
            crealm: KerberosString(b""),
            cname: PrincipalName {
                name_type: NAME_PRINCIPAL,
                name_string: vec![KerberosString(b"afs")],
            },
            transited: TransitedEncoding {
                tr_type: 0,
                contents: OctetStringRef::new(b"").map_err(failed)?,
            },
            authtime: GeneralizedTime::from_unix_duration(Duration::ZERO).map_err(failed)?,
            starttime: None,
            endtime: GeneralizedTime::from_unix_duration(Duration::from_secs(NEVER.into()))
                .map_err(failed)?,
            renew_till: None,
            caddr: None,
            authorization_data: None,
        },
    };
    let plain = Zeroizing::new(content.to_der().map_err(failed)?);
    let sealed =
        crypt::encrypt(key, USAGE_TICKET, &plain).ok_or(Error::Ticket("cannot be sealed"))?;
    let part = EncryptedData {
        etype: key.enctype().number(),
        kvno: Some(kvno),
        cipher: OctetStringRef::new(&sealed).map_err(failed)?,
    };
    part.to_der().map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Enctype;

    fn key(enctype: Enctype) -> SecretKey {
        SecretKey::new(enctype, &vec![9; enctype.key_length()]).unwrap()
    }

    #[test]
    fn minted_tickets_open_with_their_key_only() {
        let session = kdf::random_key();
        for enctype in Enctype::ALL {
            let part = mint(&key(enctype), 7, &session).unwrap();
            let opened = open_encrypted_part(&part, false, |kvno, number| {
                assert_eq!((kvno, number), (7, enctype.number()));
                Some(key(enctype))
            });
            let opened = opened.unwrap_or_else(|refusal| panic!("{refusal:?}"));
            assert_eq!(
                (opened.name.as_str(), opened.instance.as_str()),
                ("afs", "")
            );
            assert_eq!((opened.realm.as_str(), opened.starts), ("", 0));
            assert_eq!(opened.ends, NEVER);
            assert_eq!(opened.session_key, session);
            assert!(!opened.invalid);

            let refusal = open_encrypted_part(&part, false, |_, _| None).err();
            assert_eq!(refusal, Some(Refusal::UnknownKey));
            let other = SecretKey::new(enctype, &vec![8; enctype.key_length()]).unwrap();
            let refusal = open_encrypted_part(&part, false, |_, _| Some(other)).err();
            assert_eq!(refusal, Some(Refusal::Bad));
        }
    }

    /// Tickets from MIT's KDC, with the service keys and the output of `klist` for them.
    #[test]
    fn tickets_of_a_kdc_are_opened() {
        let text = include_str!("../../../../testdata/tickets/mit-krb5.txt");
        let bytes = |hex: &str| -> Vec<u8> {
            let digits = (0..hex.len()).step_by(2).map(|at| &hex[at..at + 2]);
            digits
                .map(|pair| u8::from_str_radix(pair, 16).unwrap())
                .collect()
        };
        let mut opened = 0;
        for record in text.split("\n\n").filter(|record| !record.is_empty()) {
            let field = |name: &str| -> Vec<&str> {
                let mut lines = record.lines().map(|line| line.split(' '));
                let found = lines.find_map(|mut words| {
                    (words.next() == Some(name)).then(|| words.collect::<Vec<_>>())
                });
                found.unwrap()
            };
            let [kvno, number, key] = field("service-key")[..] else {
                panic!("a key")
            };
            let (kvno, number): (u32, i32) = (kvno.parse().unwrap(), number.parse().unwrap());
            let key = SecretKey::new(Enctype::from_number(number).unwrap(), &bytes(key)).unwrap();
            let find = |asked, enctype| ((asked, enctype) == (kvno, number)).then(|| key.clone());
            let ticket = bytes(field("ticket")[0]);
            let part = encrypted_part(&ticket).unwrap();
            let outcomes = [
                open_ticket(&ticket, false, find),
                open_encrypted_part(&part, false, find),
            ];
            for outcome in outcomes {
                let ticket = outcome.unwrap_or_else(|refusal| panic!("{refusal:?}"));
                let slash = if ticket.instance.is_empty() { "" } else { "/" };
                let client = format!("{}{slash}{}@{}", ticket.name, ticket.instance, ticket.realm);
                assert_eq!(client, field("client")[0]);
                assert_eq!(ticket.starts.to_string(), field("starts")[0]);
                assert_eq!(ticket.ends.to_string(), field("ends")[0]);
                let [number, session] = field("session-key")[..] else {
                    panic!("a key")
                };
                let derived = kdf::session_key(number.parse().unwrap(), &bytes(session));
                assert_eq!(Some(ticket.session_key), derived);
                assert_eq!((ticket.kvno, ticket.invalid), (kvno, false));
                opened += 1;
            }
        }
        assert_eq!(opened, 10);
    }

    #[test]
    fn every_change_of_a_ticket_is_noticed() {
        let key = key(Enctype::Aes256Sha1);
        let part = mint(&key, 7, &kdf::random_key()).unwrap();
        for at in 0..part.len() {
            for bit in 0..8 {
                let mut changed = part.clone();
                changed[at] ^= 1 << bit;
                let outcome = open_encrypted_part(&changed, false, |kvno, enctype| {
                    (kvno == 7 && enctype == 18).then(|| key.clone())
                });
                assert!(outcome.is_err(), "bit {bit} of byte {at}");
            }
        }
        for length in 0..part.len() {
            let outcome = open_encrypted_part(&part[..length], false, |_, _| Some(key.clone()));
            assert!(outcome.is_err());
        }
    }
}
