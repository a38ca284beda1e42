//! A server that its stand-in watches, as the stand-in sees it.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use cellar_rpc::LoggedPacket;
use nix::sys::socket::{setsockopt, sockopt};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader, Interest};
use tokio::net::{UdpSocket, UnixStream};

use super::clients::CLIENTS_MAX;
use super::message::{self, Announcement, DESCRIPTORS_MAX, Released, Shared};

/// The length of an announcement: some addresses.
const ANNOUNCEMENT_MAX: u64 = 4096;
/// The age of the oldest calls that a killed server may not have answered. A change takes 1.6 s at
/// most.
const UNANSWERED: Duration = Duration::from_secs(3);

/// A server that has announced itself.
pub(super) struct Server {
    pub(super) announcement: Announcement,
    connection: UnixStream,
    ports: Vec<SharedPort>,
    /// The beginning of a message, and the descriptors that came with it.
    line: Vec<u8>,
    descriptors: Vec<OwnedFd>,
}

struct SharedPort {
    address: SocketAddr,
    sockets: Vec<OwnedFd>,
    logs: Vec<OwnedFd>,
}

impl Server {
    /// Reads the announcement of a server. `None` if it only asked whether a stand-in is there.
    pub(super) async fn announced(connection: UnixStream) -> Option<Self> {
        let mut connection = BufReader::new(connection);
        let mut line = String::new();
        let mut limited = (&mut connection).take(ANNOUNCEMENT_MAX);
        if limited.read_line(&mut line).await.ok()? == 0 {
            return None;
        }
        match serde_json::from_str(&line) {
            Ok(announcement) => Some(Self {
                announcement,
                // The server sends no more before it is answered.
                connection: connection.into_inner(),
                ports: Vec::new(),
                line: Vec::new(),
                descriptors: Vec::new(),
            }),
            Err(cause) => {
                tracing::warn!(%cause, "an announcement cannot be read");
                None
            }
        }
    }

    /// Answers the announcement, with the sockets of the server before.
    pub(super) async fn answer(&mut self, released: &Released, sockets: &[OwnedFd]) {
        if let Err(cause) = self.try_answer(released, sockets).await {
            // A server that has ended already is noticed as its end.
            tracing::warn!(%cause, "the server cannot be answered");
        }
    }

    async fn try_answer(&mut self, released: &Released, sockets: &[OwnedFd]) -> io::Result<()> {
        let answer = message::line(released)?;
        let connection = &self.connection;
        for some in sockets.chunks(DESCRIPTORS_MAX) {
            let send = || message::send(connection, b" ", some);
            connection.async_io(Interest::WRITABLE, send).await?;
        }
        self.connection.write_all(answer.as_bytes()).await
    }

    /// Waits for the end of the server.
    pub(super) async fn ended(&mut self) {
        loop {
            if self.connection.readable().await.is_err() {
                return;
            }
            match self.receive() {
                Ok(0) => return,
                Ok(_) => {}
                Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return,
            }
        }
    }

    fn receive(&mut self) -> io::Result<usize> {
        let mut bytes = [0; 1024];
        let (connection, descriptors) = (&self.connection, &mut self.descriptors);
        let received = connection.try_io(Interest::READABLE, || {
            message::receive(connection, &mut bytes, descriptors)
        })?;
        for byte in bytes.get(..received).unwrap_or_default() {
            match byte {
                b'\n' => self.take_line(),
                _ if self.line.len() < ANNOUNCEMENT_MAX as usize => self.line.push(*byte),
                _ => {}
            }
        }
        Ok(received)
    }

    fn take_line(&mut self) {
        let line = std::mem::take(&mut self.line);
        let Ok(shared) = serde_json::from_slice::<Shared>(&line) else {
            tracing::warn!("a message of the server cannot be read");
            return;
        };
        let mut take = |count: usize| -> Vec<OwnedFd> {
            let count = count.min(self.descriptors.len());
            self.descriptors.drain(..count).collect()
        };
        self.ports.push(SharedPort {
            address: shared.address,
            sockets: take(shared.sockets),
            logs: take(shared.logs),
        });
    }

    /// The sockets of the server.
    pub(super) fn into_sockets(self) -> Vec<OwnedFd> {
        self.ports
            .into_iter()
            .flat_map(|port| port.sockets)
            .collect()
    }

    /// The sockets that the server had at an address, to read from them.
    pub(super) fn sockets_at(&self, address: SocketAddr) -> Vec<UdpSocket> {
        let here = self.ports.iter().filter(|port| port.address == address);
        let own = |socket: &OwnedFd| {
            let socket = std::net::UdpSocket::from(socket.try_clone()?);
            take_over(&socket)?;
            UdpSocket::from_std(socket)
        };
        let told = |cause: &io::Error| tracing::warn!(%cause, "a socket cannot be taken over");
        here.flat_map(|port| &port.sockets)
            .filter_map(|socket| own(socket).inspect_err(told).ok())
            .collect()
    }

    /// A packet of the last call of each channel of each connection at an address, newest first.
    /// Most of these calls are answered.
    pub(super) fn unanswered_at(&self, address: SocketAddr) -> Vec<LoggedPacket> {
        let here = self.ports.iter().filter(|port| port.address == address);
        let mut packets = Vec::new();
        for log in here.flat_map(|port| &port.logs) {
            match log.try_clone().and_then(LoggedPacket::read_all) {
                Ok(read) => packets.extend(read),
                Err(cause) => tracing::warn!(%cause, "a log of packets cannot be read"),
            }
        }
        packets.retain(|packet| packet.age < UNANSWERED);
        packets.sort_by_key(|packet| (packet.age, Reverse(packet.header.call_number)));
        let mut channels = HashSet::new();
        packets.retain(|LoggedPacket { client, header, .. }| {
            channels.insert((*client, header.epoch, header.cid))
        });
        packets.truncate(CLIENTS_MAX);
        packets
    }
}

/// Each datagram is received alone, and ICMP messages are not kept in the socket.
fn take_over(socket: &std::net::UdpSocket) -> io::Result<()> {
    setsockopt(socket, sockopt::UdpGroSegment, &false)?;
    match socket.local_addr()? {
        SocketAddr::V4(_) => setsockopt(socket, sockopt::Ipv4RecvErr, &false)?,
        SocketAddr::V6(_) => setsockopt(socket, sockopt::Ipv6RecvErr, &false)?,
    }
    Ok(())
}
