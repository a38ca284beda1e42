//! Ports for the server of a test: a row of UDP ports that is nobody else's, over its restarts too.
//!
//! To bind a port, see that it is free and give it to a program is a race: another test does the same,
//! and the system gives a client the same port meanwhile. So a row lies below the ports that the system
//! gives to clients, and is reserved by listening on the TCP port of its first number: no two tests, in
//! whatever process, get that, and it ends with the test however that ends.

use std::net::{Ipv4Addr, TcpListener, UdpSocket};

/// A cell has eight, from the file server's on; what may be beside them has room.
const ROW: u16 = 32;
/// Linux gives clients ports from 32768 on; those that lie between are for KDCs and other tests.
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
        // Somewhere else in each process, so that they seldom ask for the same.
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
