//! The operations on volumes: one file for each kind. A change is a transaction of `txn`; `frozen`
//! reads a volume as it was at one moment.

pub(crate) mod archive;
pub(crate) mod attributes;
pub(crate) mod create;
pub(crate) mod frozen;
pub(crate) mod layout;
pub(crate) mod make;
pub(crate) mod promote;
pub(crate) mod pushed;
pub(crate) mod remove;
pub(crate) mod rename;
pub(crate) mod replace;
pub(crate) mod restore;
pub(crate) mod retired;
pub(crate) mod snapshot;
pub(crate) mod store;
pub(crate) mod txn;
