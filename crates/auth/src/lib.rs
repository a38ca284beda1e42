//! Authentication: who calls, and the proof of it.
//!
//! * [`Authority`]: the basis of a server's trust (keys, superusers, realms), from the files of its
//!   configuration directory in OpenAFS's forms.
//! * [`Principal`], [`Identity`]: the authenticated identity of a caller.
//! * [`Token`]: the credential of a client for one cell.
//! * [`audit`]: the log of administrative acts, as JSON lines.
//!
//! The crate uses no socket and reads no clock. It reads and writes the files named above.

// This crate parses bytes from strangers: nothing may panic on them.
#![cfg_attr(
    not(test),
    deny(clippy::expect_used, clippy::indexing_slicing, clippy::panic)
)]

pub mod audit;
mod authority;
mod bytes;
pub mod capability;
mod error;
mod fcrypt;
mod file;
#[doc(hidden)]
pub mod fuzzing;
mod identity;
mod kdf;
mod kerberos;
mod key;
mod keys;
mod principal;
mod realms;
mod rxkad;
mod superusers;
mod token;

pub use authority::{Authority, Policy};
pub use error::{Error, Result};
pub use identity::Identity;
pub use kerberos::sealed_with;
pub use key::{Enctype, SecretKey};
pub use keys::{KeyInfo, Keys};
pub use principal::{Level, Principal};
pub use rxkad::Figures;
pub use superusers::Superusers;
pub use token::{KVNO_ENCRYPTED_PART, KVNO_KERBEROS_TICKET, KerberosCredential, Token};
