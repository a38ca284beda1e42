//! The pages, one module for each.

pub(crate) mod audit;
pub(crate) mod jobs;
pub(crate) mod login;
pub(crate) mod overview;
pub(crate) mod policies;
pub(crate) mod servers;
pub(crate) mod usage;
pub(crate) mod user;
pub(crate) mod users;
pub(crate) mod volume;
pub(crate) mod volumes;
