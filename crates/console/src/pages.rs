//! The pages, one module for each.

pub(crate) mod audit;
pub(crate) mod jobs;
pub(crate) mod login;
pub(crate) mod operations;
pub(crate) mod overview;
pub(crate) mod policies;
pub(crate) mod repairs;
pub(crate) mod servers;
pub(crate) mod transactions;
pub(crate) mod usage;
pub(crate) mod user;
pub(crate) mod users;
pub(crate) mod volume;
mod volume_changes;
pub(crate) mod volumes;
