//! Ports for the server of a test: a row of UDP ports that no other program uses, also over
//! restarts of the server.
//!
//! To bind a port, find it free and give it to a program is a race. Another test may do the same,
//! and the system may give a client the same port meanwhile. So a row is below the ports that the
//! system gives to clients. It is reserved by listening on the TCP port of its first number. No two
//! tests in any processes can both do that, and the reservation ends with the test however it ends.

use std::net::{Ipv4Addr, TcpListener, UdpSocket};

/// A cell has eight ports, from the file server's on. The row has space for more.
const ROW: u16 = 32;
/// Linux gives clients ports from 32768 on. The ports in between are for KDCs and other tests.
const PORTS: std::ops::Range<u16> = 10_016..19_968;

/// A row that is reserved until it is dropped.
pub(crate) struct Ports {
    /// The first port of the row.
    pub(crate) first: u16,
    _reserved: TcpListener,
}

impl Ports {
    /// Reserves a row.
    pub(crate) fn reserve() -> Self {
        let rows = (PORTS.end - PORTS.start) / ROW;
        // Each process starts elsewhere, so that processes seldom try the same row.
        let start = (std::process::id() % u32::from(rows)) as u16;
        for number in 0..rows {
            let first = PORTS.start + (start + number) % rows * ROW;
            let Ok(reserved) = TcpListener::bind((Ipv4Addr::LOCALHOST, first)) else {
                continue;
            };
            let free = |port| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok();
            if (first..first + ROW).all(free) {
                return Self {
                    first,
                    _reserved: reserved,
                };
            }
        }
        panic!("no {ROW} free UDP ports in a row from {PORTS:?}");
    }
}
