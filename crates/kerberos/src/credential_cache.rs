//! The file format of a Kerberos credential cache, as MIT's and Heimdal's libraries write it
//! (versions 3 and 4).
//!
//! ```text
//! 05 04  u16 length, header fields          (version 3: 05 03, no header)
//! principal                                 the owner
//! credential...                             to the end of the file
//! principal:  u32 type, u32 n, realm, n components            each string: u32 length, bytes
//! credential: principal client, principal server, key,
//!             u32 x 4 times (authenticated, start, end, renew until),
//!             u8, u32 flags, addresses, authorization data, ticket, second ticket
//! key:        u16 type (version 3: twice), u32 length, bytes
//! ```
//!
//! Every count is big-endian. It is checked against the remaining bytes before memory is allocated.
//! Entries that are not tickets are left out: the library's settings, and tickets that the library
//! has removed by an end time of 0. Source: MIT krb5 documentation, "Credential cache file format".

use std::fmt;
use std::ops::Range;

use zeroize::Zeroizing;

use crate::principal::KerberosPrincipal;

/// The most bytes of a cache that are read: enough for thousands of tickets.
pub const CACHE_BYTES_MAX: u64 = 16 << 20;

/// The most components of one name. Real names have two or three.
const COMPONENTS_MAX: u32 = 64;

/// The realm of entries that hold settings of the library.
const SETTINGS_REALM: &str = "X-CACHECONF:";

/// The reason why bytes are not a credential cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadCache {
    /// The first bytes are not those of a cache.
    #[error("not a Kerberos credential cache")]
    NotACache,
    /// A version of the format from before Kerberos 1.3 (2003).
    #[error("a credential cache of a form that is no longer written (version {0})")]
    Old(u8),
    /// The file is truncated, or a count in it is impossible.
    #[error("a damaged credential cache")]
    Damaged,
}

/// A ticket with its session key.
#[derive(Clone, PartialEq, Eq)]
pub struct Ticket {
    /// The principal to whom the ticket was issued.
    pub client: KerberosPrincipal,
    /// The service for which the ticket is valid.
    pub server: KerberosPrincipal,
    /// The encryption type of the session key.
    pub enctype: i32,
    /// The session key.
    pub session_key: Zeroizing<Vec<u8>>,
    /// The begin of the ticket's validity, in Unix seconds.
    pub begins: u32,
    /// The end of the ticket's validity, in Unix seconds.
    pub ends: u32,
    /// The end of the time in which the ticket can be renewed, in Unix seconds; 0: not renewable.
    pub renew_until: u32,
    /// The ticket as the KDC made it (DER).
    pub ticket: Vec<u8>,
    /// The range of the entry in the file, from start to end, in bytes.
    place: (usize, usize),
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket")
            .field("client", &self.client)
            .field("server", &self.server)
            .field("enctype", &self.enctype)
            .field("ends", &self.ends)
            .finish_non_exhaustive()
    }
}

/// A parsed cache: its owner and its tickets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CredentialCache {
    /// The owner.
    pub owner: KerberosPrincipal,
    /// The tickets in the order of the file.
    pub tickets: Vec<Ticket>,
}

impl CredentialCache {
    /// Parses a cache.
    ///
    /// # Errors
    /// [`BadCache`].
    pub fn parse(bytes: &[u8]) -> Result<Self, BadCache> {
        let mut reader = Reader { bytes, at: 0 };
        let form = match bytes {
            [5, form @ (3 | 4), ..] => *form,
            [5, form @ (1 | 2), ..] => return Err(BadCache::Old(*form)),
            _ => return Err(BadCache::NotACache),
        };
        reader.at = 2;
        if form == 4 {
            let length = usize::from(reader.u16()?);
            reader.take(length)?;
        }
        let owner = reader.principal()?;
        let mut tickets = Vec::new();
        while reader.at < bytes.len() {
            if let Some(ticket) = reader.ticket(form)? {
                tickets.push(ticket);
            }
        }
        Ok(Self { owner, tickets })
    }

    /// The ticket-granting ticket of the owner's own realm, if it is valid at `now` (Unix seconds).
    pub fn granting_ticket(&self, now: u32) -> Option<&Ticket> {
        self.tickets.iter().find(|ticket| {
            ticket.server.is_ticket_granting()
                && ticket.server.realm == self.owner.realm
                && ticket.server.components.get(1) == Some(&self.owner.realm)
                && ticket.ends > now
        })
    }

    /// The bytes of a cache without the tickets for which `unwanted` returns true.
    ///
    /// # Errors
    /// [`BadCache`].
    pub fn without(
        bytes: &[u8],
        unwanted: impl Fn(&Ticket) -> bool,
    ) -> Result<Zeroizing<Vec<u8>>, BadCache> {
        let cache = Self::parse(bytes)?;
        let mut kept = Zeroizing::new(Vec::with_capacity(bytes.len()));
        let mut from = 0;
        for ticket in cache.tickets.iter().filter(|ticket| unwanted(ticket)) {
            let (start, end) = ticket.place;
            kept.extend_from_slice(bytes.get(from..start).ok_or(BadCache::Damaged)?);
            from = end;
        }
        kept.extend_from_slice(bytes.get(from..).ok_or(BadCache::Damaged)?);
        Ok(kept)
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], BadCache> {
        let end = self.at.checked_add(length).ok_or(BadCache::Damaged)?;
        let Range { start, end } = self.at..end;
        let taken = self.bytes.get(start..end).ok_or(BadCache::Damaged)?;
        self.at = end;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], BadCache> {
        let taken = self.take(N)?.first_chunk();
        taken.copied().ok_or(BadCache::Damaged)
    }

    fn u8(&mut self) -> Result<u8, BadCache> {
        Ok(u8::from_be_bytes(self.array()?))
    }

    fn u16(&mut self) -> Result<u16, BadCache> {
        Ok(u16::from_be_bytes(self.array()?))
    }

    fn u32(&mut self) -> Result<u32, BadCache> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    fn counted(&mut self) -> Result<&'a [u8], BadCache> {
        let length = usize::try_from(self.u32()?).map_err(|_| BadCache::Damaged)?;
        self.take(length)
    }

    fn text(&mut self) -> Result<String, BadCache> {
        Ok(String::from_utf8_lossy(self.counted()?).into_owned())
    }

    fn principal(&mut self) -> Result<KerberosPrincipal, BadCache> {
        let _type = self.u32()?;
        let count = self.u32()?;
        if count > COMPONENTS_MAX {
            return Err(BadCache::Damaged);
        }
        let realm = self.text()?;
        let components = (0..count).map(|_| self.text()).collect::<Result<_, _>>()?;
        Ok(KerberosPrincipal { components, realm })
    }

    /// Skips addresses or authorization data: a list of (type, bytes).
    fn skip_list(&mut self) -> Result<(), BadCache> {
        for _ in 0..self.u32()? {
            self.u16()?;
            self.counted()?;
        }
        Ok(())
    }

    /// Parses one entry; `None` if the entry is not a ticket.
    fn ticket(&mut self, form: u8) -> Result<Option<Ticket>, BadCache> {
        let start = self.at;
        let client = self.principal()?;
        let server = self.principal()?;
        let mut enctype = self.u16()?;
        if form == 3 {
            enctype = self.u16()?;
        }
        let session_key = Zeroizing::new(self.counted()?.to_vec());
        let authenticated = self.u32()?;
        let starts = self.u32()?;
        let ends = self.u32()?;
        let renew_until = self.u32()?;
        let _is_session_key = self.u8()?;
        let _flags = self.u32()?;
        self.skip_list()?;
        self.skip_list()?;
        let ticket = self.counted()?.to_vec();
        let _second = self.counted()?;
        if server.realm == SETTINGS_REALM || ends == 0 {
            return Ok(None);
        }
        Ok(Some(Ticket {
            client,
            server,
            enctype: i32::from(enctype.cast_signed()),
            session_key,
            begins: if starts == 0 { authenticated } else { starts },
            ends,
            renew_until,
            ticket,
            place: (start, self.at),
        }))
    }
}

#[cfg(test)]
mod tests;
