//! The UDP ports of a start, checked before anything is made on the disk.
//!
//! A cell that is made and cannot serve is in the way of the next attempt. The check binds each
//! port and frees it again. The servers bind them for good later, so a program that starts in
//! between still makes the start fail.

use std::net::{SocketAddr, UdpSocket};

use crate::cell_directory::Identity;
use crate::failure::{Failure, Outcome};

use super::osds;

/// Checks the ports of the roles of an identity; `with_devices`: also the port of devices. A
/// stand-in may have those of the databases, and gives them back later.
pub(super) fn check_all(identity: &Identity, with_devices: bool, has_stand_in: bool) -> Outcome {
    let (ports, part) = (&identity.cell.ports, identity.part);
    let mut numbers = vec![ports.overseer];
    if part.has_databases() && !has_stand_in {
        numbers.extend([ports.protection, ports.location]);
    }
    if part.has_fileserver() {
        numbers.extend([ports.fileserver, ports.volume]);
    }
    if with_devices {
        numbers.push(osds::port(ports));
    }
    numbers.sort_unstable();
    let addresses = numbers.into_iter();
    addresses
        .map(|number| SocketAddr::new(identity.bind, number))
        .try_for_each(check)
}

/// Checks a port.
pub(crate) fn check(address: SocketAddr) -> Outcome {
    match UdpSocket::bind(address) {
        Ok(_free) => Ok(()),
        Err(cause) => Err(Failure::of_port(&cause, address)),
    }
}
