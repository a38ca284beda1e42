//! The messages between a server and its stand-in: lines of JSON, some with descriptors
//! (`SCM_RIGHTS`).
//!
//! | from | message | descriptors |
//! | --- | --- | --- |
//! | server | [`Announcement`] | - |
//! | stand-in | [`Released`], after a space for each group of them | the sockets before |
//! | server | [`Shared`], for each port, when the ports are open | its sockets, then its logs |

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize};

/// The most descriptors with one message: a port of 64 shards has 128. Linux permits 253.
pub(super) const DESCRIPTORS_MAX: usize = 128;

/// A server that is about to open its ports.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Announcement {
    /// The address of PR.
    pub(super) users: SocketAddr,
    /// The address of VL.
    pub(super) locations: SocketAddr,
}

/// The stand-in's answer to an announcement.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Released {
    pub(super) held: Vec<Held>,
}

/// A packet that came while the server was away.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Held {
    /// The server's address.
    pub(crate) to: SocketAddr,
    /// The client's.
    pub(crate) from: SocketAddr,
    pub(crate) packet: Vec<u8>,
}

/// An open port of a server. Its descriptors come with the message.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Shared {
    pub(super) address: SocketAddr,
    /// The number of sockets. The other descriptors are logs ([`cellar_rpc::LoggedPacket`]).
    pub(super) sockets: usize,
    pub(super) logs: usize,
}

/// A message as a line.
pub(super) fn line(message: &impl Serialize) -> io::Result<String> {
    let mut line = serde_json::to_string(message).map_err(io::Error::other)?;
    line.push('\n');
    Ok(line)
}

/// Sends bytes with at most [`DESCRIPTORS_MAX`] descriptors. Returns the number of bytes sent.
pub(super) fn send(to: impl AsFd, bytes: &[u8], with: &[OwnedFd]) -> io::Result<usize> {
    let descriptors: Vec<BorrowedFd<'_>> = with.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let bytes = [IoSlice::new(bytes)];
    Ok(sendmsg(to, &bytes, &mut control, SendFlags::NOSIGNAL)?)
}

/// Receives bytes, and the descriptors that come with them. Returns the number of bytes; 0 at the
/// end.
pub(super) fn receive(
    from: impl AsFd,
    into: &mut [u8],
    descriptors: &mut Vec<OwnedFd>,
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut into = [IoSliceMut::new(into)];
    let received = recvmsg(from, &mut into, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(came) = message {
            descriptors.extend(came);
        }
    }
    Ok(received.bytes)
}
