//! The part of Kerberos 5 that a server needs to read a ticket, and a holder of the cell's key to
//! make one.

mod asn1;
mod crypt;
mod names;
mod ticket;

pub use ticket::sealed_with;
pub(crate) use ticket::{
    NEVER, Opened, Refusal, encrypted_part, mint, open_encrypted_part, open_ticket, read_content,
};
