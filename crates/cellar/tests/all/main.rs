//! The integration tests of this crate, one program: `cargo test -p cellar --test all MODULE`.

#![allow(clippy::unwrap_used, reason = "a failed test says where")]

mod cell;
mod check;
mod commands;
mod common;
mod config;
mod databases;
mod dialect;
mod etcd;
mod hostile;
mod hsm;
mod interrupted;
mod join;
mod kerberos;
mod last_start;
mod log;
mod missing;
mod objects;
mod objects_away;
mod objects_cp;
mod objects_devices;
mod objects_upkeep;
mod objects_volumes;
mod osd;
mod partition;
mod refill;
mod reload;
mod serve;
mod server;
mod service_manager;
mod stand_in;
mod status;
mod top;
mod trees;
mod upgrade;
mod vos;
