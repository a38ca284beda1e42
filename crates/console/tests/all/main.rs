//! Requests to the console in this process.

mod access;
mod requests;
mod sockets;
