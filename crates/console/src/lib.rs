//! The web console of a cell: pages and plots that the server makes, without scripts.
//!
//! The console is a client of the cell. Its data come from the servers through `cellar-admin`, with
//! the identity of the process. [`auth`] decides who sees pages and who makes changes.
//!
//! | file | concept |
//! | --- | --- |
//! | `auth.rs` | tokens, sessions, checks of requests |
//! | `login_socket.rs` | the socket of `cellar console login` |
//! | `listen.rs`, `tls.rs` | connections and the certificate |
//! | `cell.rs` | questions to the cell, each with a time limit and a short memory |
//! | `operations.rs` | moves, releases and backups that administrators start here, and their states |
//! | `pages/` | one file for each page |
//! | `html.rs`, `plot.rs` | the frame of a page, tables, plots |
//!
//! 1. Text of the cell is hostile: names of volumes and users, messages of servers. `maud` escapes
//!    all of it. Only the files in `assets` are sent as they are.
//! 2. A page is bounded: lists are paged, searches and questions have a time limit. If a server
//!    does not answer, the page has a sentence about it.
//! 3. A page has no scripts and no styles in attributes. The content security policy forbids both.

pub mod auth;
mod cache;
mod cell;
mod html;
mod listen;
mod login_socket;
mod operations;
mod pages;
mod plot;
mod routes;
mod tls;

pub use cell::{Site, SiteLimits};
pub use listen::{check_address, serve};
pub use login_socket::{LoginSocket, request_login};
pub use routes::router;
pub use tls::{Certificate, TlsError};
