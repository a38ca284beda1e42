//! ICMP errors about datagrams that we sent: unreachable hosts and ports, and paths that need
//! smaller packets.
//!
//! Linux keeps such errors in a socket's error queue, together with the destination of the
//! datagram. "Port unreachable" saves a caller the dead time if the server does not run.
//! "Fragmentation needed" prevents a black hole on the path. Source: ip(7), `IP_RECVERR`.

// This file parses bytes from the network, so no input may cause a panic.
#![cfg_attr(
    not(test),
    deny(clippy::expect_used, clippy::indexing_slicing, clippy::panic)
)]

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd};

/// An ICMP error about a datagram of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IcmpError {
    /// There is no route to that host.
    Unreachable(SocketAddr),
    /// Nothing listens on that port of the host.
    Refused(SocketAddr),
    /// The path to there carries IP packets of at most this many bytes.
    TooBig(SocketAddr, u32),
}

/// Takes the next error from a socket's error queue; `None` if it is empty. Errors that need no
/// reaction are skipped.
///
/// # Errors
/// The system reports an error of the socket itself.
pub(crate) fn next_error(socket: BorrowedFd<'_>) -> io::Result<Option<IcmpError>> {
    // Bounded: if errors arrive faster, the rest is read next time.
    for _ in 0..MESSAGES_MAX {
        let Some((destination, error)) = receive(socket)? else {
            return Ok(None);
        };
        let (Some(destination), Some(error)) = (destination, error) else {
            continue;
        };
        match error.ee_errno.cast_signed() {
            libc::ECONNREFUSED => return Ok(Some(IcmpError::Refused(destination))),
            libc::EHOSTUNREACH | libc::ENETUNREACH | libc::EHOSTDOWN => {
                return Ok(Some(IcmpError::Unreachable(destination)));
            }
            libc::EMSGSIZE => return Ok(Some(IcmpError::TooBig(destination, error.ee_info))),
            _ => {}
        }
    }
    Ok(None)
}

type Message = (Option<SocketAddr>, Option<libc::sock_extended_err>);

#[allow(unsafe_code, reason = "no safe interface to MSG_ERRQUEUE exists")]
fn receive(socket: BorrowedFd<'_>) -> io::Result<Option<Message>> {
    let mut name = MaybeUninit::<libc::sockaddr_storage>::zeroed();
    let mut control = [0u64; CONTROL_WORDS];
    let mut payload = [0u8; 1];
    let mut vector = libc::iovec {
        iov_base: payload.as_mut_ptr().cast(),
        iov_len: payload.len(),
    };
    // SAFETY: a message header of zeros is a valid one: no buffers, no lengths.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_name = name.as_mut_ptr().cast();
    header.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    header.msg_iov = &raw mut vector;
    header.msg_iovlen = 1;
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = size_of_val(&control) as _;
    let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
    // SAFETY: the descriptor is open; every pointer in the header is to a live local of the length
    // that is given with it.
    let result = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, flags) };
    if result < 0 {
        let cause = io::Error::last_os_error();
        return match cause.kind() {
            io::ErrorKind::WouldBlock => Ok(None),
            io::ErrorKind::Interrupted => Ok(Some((None, None))),
            _ => Err(cause),
        };
    }
    // SAFETY: zeroed at first, so initialised whatever part of it the kernel has written.
    let name = unsafe { name.assume_init() };
    let mut error = None;
    // SAFETY: the header is as the kernel left it, and `control` is alive; the macros stay within
    // the length that it gives.
    let mut part = unsafe { libc::CMSG_FIRSTHDR(&raw const header) };
    while !part.is_null() {
        // SAFETY: not null, so within `control`, which is aligned for it.
        let (level, kind, len) = unsafe {
            (
                (*part).cmsg_level,
                (*part).cmsg_type,
                (*part).cmsg_len as usize,
            )
        };
        let wanted = (level == libc::IPPROTO_IP && kind == libc::IP_RECVERR)
            || (level == libc::IPPROTO_IPV6 && kind == libc::IPV6_RECVERR);
        // SAFETY: computes a length only.
        let needed =
            unsafe { libc::CMSG_LEN(size_of::<libc::sock_extended_err>() as u32) } as usize;
        if wanted && len >= needed {
            // SAFETY: the part has room for the structure, which may lie unaligned.
            error = Some(unsafe {
                libc::CMSG_DATA(part)
                    .cast::<libc::sock_extended_err>()
                    .read_unaligned()
            });
        }
        // SAFETY: as for the first part.
        part = unsafe { libc::CMSG_NXTHDR(&raw const header, part) };
    }
    Ok(Some((address(&name), error)))
}

#[allow(unsafe_code, reason = "a socket address is a union by its family")]
fn address(name: &libc::sockaddr_storage) -> Option<SocketAddr> {
    match libc::c_int::from(name.ss_family) {
        libc::AF_INET => {
            // SAFETY: the storage is large enough and aligned for every family.
            let v4 = unsafe { &*std::ptr::from_ref(name).cast::<libc::sockaddr_in>() };
            let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
            Some(SocketAddr::V4(SocketAddrV4::new(
                ip,
                u16::from_be(v4.sin_port),
            )))
        }
        libc::AF_INET6 => {
            // SAFETY: the storage is large enough and aligned for every family.
            let v6 = unsafe { &*std::ptr::from_ref(name).cast::<libc::sockaddr_in6>() };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            let port = u16::from_be(v6.sin6_port);
            Some(SocketAddr::V6(SocketAddrV6::new(
                ip,
                port,
                0,
                v6.sin6_scope_id,
            )))
        }
        _ => None,
    }
}

/// Room for the error, the address of its reporter, and options that we have requested.
const CONTROL_WORDS: usize = 64;
/// Errors taken from a socket at a time; the others are read next time.
const MESSAGES_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_closed_port_is_reported_with_its_address() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let state = quinn_udp::UdpSocketState::new((&socket).into()).unwrap();
        state.enable_transport_errors((&socket).into()).unwrap();
        assert_eq!(next_error(socket.as_fd()).unwrap(), None);
        let closed = UdpSocket::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap();
        socket.send_to(&[1, 2, 3], closed).unwrap();
        assert_eq!(
            next_error(socket.as_fd()).unwrap(),
            Some(IcmpError::Refused(closed))
        );
        assert_eq!(next_error(socket.as_fd()).unwrap(), None);
    }
}
