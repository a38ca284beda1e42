//! Tokens from Kerberos, and the kernel's keyrings in which kAFS looks for tokens.
//!
//! The user's Kerberos credential cache is the only store of tokens for the commands of `cellar`:
//!
//! 1. `cellar login` puts a ticket for the cell's service into the user's credential cache. The
//!    cache may be of any kind ([`get_token`]).
//! 2. Every command makes its token from that ticket ([`cached_token`]). It asks no KDC, so a
//!    command is not delayed in a cell without Kerberos or on a machine without network.
//! 3. `cellar logout` removes the ticket from the cache ([`forget_token`]).
//!
//! A cache of kind FILE is read directly. For other kinds, MIT's programs copy one ticket into a
//! file (decision 0009).
//!
//! | module | content |
//! | --- | --- |
//! | [`programs`] | `kinit`, `klist`, `kvno` and `kdestroy` of MIT Kerberos |
//! | [`keyring`] | keys of type `rxrpc`, which hold the tokens of kAFS |
//!
//! The crate reads no clock: `now` is an argument, in Unix seconds.

// Foreign bytes are parsed here: nothing may panic on them.
#![cfg_attr(
    not(test),
    deny(clippy::expect_used, clippy::indexing_slicing, clippy::panic)
)]

mod cache_file;
mod credential_cache;
mod error;
pub mod keyring;
mod krb5_conf;
mod principal;
pub mod programs;
mod service;
mod tickets;

pub use cache_file::{PrivateFile, copy, read_cache};
pub use credential_cache::{BadCache, CACHE_BYTES_MAX, CredentialCache, Ticket};
pub use error::Error;
pub use krb5_conf::DomainRealm;
pub use principal::KerberosPrincipal;
pub use programs::CacheName;
pub use service::{RealmHints, candidates};
pub use tickets::{
    best, cached_token, cell_tickets, enctype_name, file_of, forget_token, get_token,
    granting_ticket,
};
