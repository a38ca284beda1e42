//! Who calls, and how that is proved.
//!
//! * [`Authority`]: what a server trusts (keys, superusers, realms), from the files of its
//!   configuration directory in OpenAFS's forms;
//! * [`Principal`], [`Identity`]: who a caller turned out to be;
//! * [`Token`]: what a client has to show to one cell;
//! * [`audit`]: who did what administrative act, as JSON lines.
//!
//! The crate touches no socket and reads no clock; it reads and writes the files named above.

// Bytes of strangers are parsed here: nothing may panic on them.
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
