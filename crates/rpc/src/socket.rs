//! UDP sockets: groups of sockets that share an address, and batches of datagrams.
//!
//! 1. Each shard has its own socket on every address of a port (`SO_REUSEPORT`). A classic BPF
//!    program on the group selects socket `(cid >> 2) % shards`. All packets of a connection so
//!    reach the shard that owns it, whatever address they come from. A datagram too short for a cid
//!    goes to the first socket.
//! 2. Received runs (GRO) above some size are passed on as slices of the buffer that the kernel
//!    filled, small datagrams in their own buffers. One queued packet of 100 bytes thus does not
//!    keep 64 KiB alive. Filled buffers are reused when their last reference is dropped. The buffer
//!    returned last is used next, since it is still in the processor's cache.
//! 3. If the socket is bound to no address, each send names the source address. A reply thus leaves
//!    from the address that its request came to.
//! 4. The event loop watches a socket for writing only while the send buffer is full. The system
//!    reports each sent packet to a watch for writing, and that report wakes a sleeping thread.

use std::cell::RefCell;
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use parking_lot::Mutex;
use quinn_udp::{BATCH_SIZE, RecvMeta, Transmit, UdpSockRef, UdpSocketState};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::icmp::{self, IcmpError};

/// Opens `count` sockets on one address, the n-th for the n-th shard. Port 0 selects any free port.
///
/// # Errors
/// The address cannot be bound, or the system lacks it.
pub(crate) fn open_group(
    address: SocketAddr,
    count: usize,
    buffer_bytes: usize,
) -> io::Result<(SocketAddr, Vec<UdpSocket>)> {
    let mut bound = address;
    let mut group = Vec::with_capacity(count);
    if count > 1 {
        // Any process of the same user can join a group. Binding a plain socket first shows whether
        // the address is really free.
        let probe = UdpSocket::bind(bound)?;
        bound = probe.local_addr()?;
    }
    for number in 0..count {
        let socket = Socket::new(Domain::for_address(bound), Type::DGRAM, Some(Protocol::UDP))?;
        if bound.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        if count > 1 {
            socket.set_reuse_port(true)?;
            if number == 0 {
                attach_shard_choice(&socket, count)?;
            }
        }
        enlarge_buffers(&socket, buffer_bytes);
        socket.set_nonblocking(true)?;
        socket.bind(&bound.into())?;
        if number == 0 {
            bound = socket.local_addr()?.as_socket().unwrap_or(bound);
        }
        group.push(UdpSocket::from(socket));
    }
    Ok((bound, group))
}

/// Takes the sockets of an address out of those that another process had opened as a group of
/// `count`, in their order. `None` if these are not there, or are too few or too many.
pub(crate) fn adopt_group(
    given: &mut Vec<UdpSocket>,
    address: SocketAddr,
    count: usize,
) -> Option<Vec<UdpSocket>> {
    let is_here = |socket: &mut UdpSocket| socket.local_addr().is_ok_and(|at| at == address);
    let group: Vec<_> = given.extract_if(.., is_here).collect();
    let is_ready = |socket: &UdpSocket| socket.set_nonblocking(true).is_ok();
    (group.len() == count && group.iter().all(is_ready)).then_some(group)
}

/// Makes the group select its socket by connection id (rx-wire facts 1.1: cid at offset 4).
#[allow(
    unsafe_code,
    reason = "no safe interface to SO_ATTACH_REUSEPORT_CBPF exists"
)]
fn attach_shard_choice(socket: &Socket, count: usize) -> io::Result<()> {
    const fn step(code: u32, k: u32) -> libc::sock_filter {
        // Codes of classic BPF are 16 bits wide; libc declares them as u32.
        libc::sock_filter {
            code: code as u16,
            jt: 0,
            jf: 0,
            k,
        }
    }
    let modulus = u32::try_from(count).unwrap_or(1).max(1);
    let mut program = [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 4),
        step(libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K, 2),
        step(libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K, modulus),
        step(libc::BPF_RET | BPF_A, 0),
    ];
    let program = libc::sock_fprog {
        len: program.len() as libc::c_ushort,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: the descriptor is open. `program` and the array it points to live through the call,
    // which copies them. The length passed is that of the structure.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_REUSEPORT_CBPF,
            (&raw const program).cast(),
            size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// "Return the accumulator", from linux/bpf_common.h; libc lacks it.
const BPF_A: u32 = 0x10;

/// The number of words of `SO_MEMINFO`, from linux/sock_diag.h; libc lacks it. The first two are
/// the queued bytes and the size of the receive buffer, the last one counts drops.
const SK_MEMINFO_VARS: usize = 9;

/// Requests large buffers: forced as root, otherwise up to the system's limit, with one warning.
fn enlarge_buffers(socket: &Socket, bytes: usize) {
    static WARNED: AtomicBool = AtomicBool::new(false);
    let wanted = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
    let receive = force_buffer(socket, libc::SO_RCVBUFFORCE, wanted)
        || (socket.set_recv_buffer_size(bytes).is_ok()
            && socket.recv_buffer_size().is_ok_and(|size| size >= bytes));
    let send = force_buffer(socket, libc::SO_SNDBUFFORCE, wanted)
        || (socket.set_send_buffer_size(bytes).is_ok()
            && socket.send_buffer_size().is_ok_and(|size| size >= bytes));
    let too_small = !receive || !send;
    if too_small && !WARNED.swap(true, Ordering::Relaxed) {
        tracing::warn!(
            "UDP buffers are smaller than {bytes} bytes: packets may be lost under load; \
             set sysctl net.core.rmem_max={bytes} and net.core.wmem_max={bytes}, or run as root"
        );
    }
}

#[allow(unsafe_code, reason = "no safe interface to SO_*BUFFORCE exists")]
fn force_buffer(socket: &Socket, option: libc::c_int, bytes: libc::c_int) -> bool {
    // SAFETY: the descriptor is open; the value lives through the call and has the length passed.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            (&raw const bytes).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    result == 0
}

/// A socket in a shard's event loop.
#[derive(Debug)]
pub(crate) struct ShardSocket {
    io: AsyncFd<UdpSocket>,
    /// A second descriptor, watched for writing from a failed send until the next successful one.
    full: RefCell<Option<AsyncFd<OwnedFd>>>,
    state: UdpSocketState,
    bound: IpAddr,
}

/// The receive side of sockets, as the system sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SocketFigures {
    /// Datagrams that the system dropped because a receive buffer was full, since the sockets were
    /// opened.
    pub drops: u64,
    /// Memory of the received datagrams that wait in the sockets now, bytes.
    pub receive_queue: u64,
    /// Sizes of the receive buffers together, bytes.
    pub receive_buffers: u64,
}

impl SocketFigures {
    /// Adds the figures of other sockets.
    pub(crate) fn add(&mut self, other: &Self) {
        self.drops += other.drops;
        self.receive_queue += other.receive_queue;
        self.receive_buffers += other.receive_buffers;
    }
}

/// Result of a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendOutcome {
    /// The datagrams were given to the network.
    Sent,
    /// The socket's buffer is full: wait until it is writable.
    Full,
    /// The path carries only smaller datagrams.
    TooBig,
    /// There is no route to the destination.
    Unreachable,
    /// Another error; the datagrams are lost, which Rx tolerates.
    Failed,
}

impl ShardSocket {
    /// Must be called on the shard's thread.
    pub(crate) fn new(socket: UdpSocket) -> io::Result<Self> {
        let bound = socket.local_addr()?.ip();
        let state = UdpSocketState::new(UdpSockRef::from(&socket))?;
        if let Err(cause) = state.enable_transport_errors(UdpSockRef::from(&socket)) {
            tracing::debug!(%cause, "cannot enable ICMP error reports on this socket");
        }
        Ok(Self {
            io: watch(socket, Interest::READABLE | Interest::ERROR)?,
            full: RefCell::default(),
            state,
            bound,
        })
    }

    /// Another descriptor of this socket.
    pub(crate) fn duplicate(&self) -> io::Result<OwnedFd> {
        self.io.as_fd().try_clone_to_owned()
    }

    /// The bound address, possibly unspecified.
    pub(crate) fn bound(&self) -> IpAddr {
        self.bound
    }

    /// Ready when a send may succeed again; otherwise the task will be woken. Must be called after
    /// a send for which the socket was full.
    pub(crate) fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut full = self.full.borrow_mut();
        let known = full.take();
        let watch = full.insert(match known {
            Some(watch) => watch,
            None => watch(self.duplicate()?, Interest::WRITABLE)?,
        });
        // The event loop does not know that the socket is full: make it check again.
        let _would_block = watch.try_io(Interest::WRITABLE, |_| would_block::<()>());
        watch.poll_write_ready(cx).map_ok(|_| ())
    }

    /// Ready when there may be data to receive; otherwise the task will be woken.
    pub(crate) fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io.poll_read_ready(cx).map_ok(|_| ())
    }

    /// Waits for an ICMP error about a sent datagram.
    pub(crate) async fn wait_for_icmp_error(&self) -> io::Result<()> {
        self.io.ready(Interest::ERROR).await?.clear_ready();
        Ok(())
    }

    /// Returns the figures of this socket (`SO_MEMINFO`, Linux 4.12). Zeros if the system does not
    /// know them.
    #[allow(unsafe_code, reason = "no safe interface to SO_MEMINFO exists")]
    pub(crate) fn figures(&self) -> SocketFigures {
        let mut words = [0_u32; SK_MEMINFO_VARS];
        let mut length = size_of_val(&words) as libc::socklen_t;
        // SAFETY: the descriptor is open; `words` and `length` live through the call, and the
        // length passed is that of `words`.
        let result = unsafe {
            libc::getsockopt(
                self.io.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_MEMINFO,
                words.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        if result != 0 {
            return SocketFigures::default();
        }
        let [receive_queue, receive_buffers, _, _, _, _, _, _, drops] = words.map(u64::from);
        SocketFigures {
            drops,
            receive_queue,
            receive_buffers,
        }
    }

    /// Returns the next ICMP error, if there is one.
    pub(crate) fn next_error(&self) -> Option<IcmpError> {
        icmp::next_error(self.io.as_fd()).unwrap_or_else(|cause| {
            tracing::debug!(%cause, "cannot read the socket's error queue");
            None
        })
    }

    /// Most datagrams in one send.
    pub(crate) fn segments_max(&self) -> usize {
        self.state.max_gso_segments()
    }

    /// Sends a run of datagrams of `segment` bytes (the last may be shorter).
    pub(crate) fn send(
        &self,
        destination: SocketAddr,
        source: Option<IpAddr>,
        contents: &[u8],
        segment: usize,
    ) -> SendOutcome {
        let transmit = Transmit {
            destination,
            ecn: None,
            contents,
            segment_size: Some(segment),
            src_ip: source.filter(|_| self.bound.is_unspecified()),
        };
        let send = || {
            self.state
                .try_send(UdpSockRef::from(self.io.get_ref()), &transmit)
        };
        // An error of an earlier datagram is reported once, by the next call.
        let outcome = send().or_else(|cause| match cause.raw_os_error() {
            Some(code) if MAY_BE_ANOTHERS.contains(&code) => send(),
            _ => Err(cause),
        });
        let Err(cause) = outcome else {
            self.full.take();
            return SendOutcome::Sent;
        };
        match (cause.kind(), cause.raw_os_error()) {
            (io::ErrorKind::WouldBlock, _) => SendOutcome::Full,
            (_, Some(libc::EMSGSIZE)) => SendOutcome::TooBig,
            (_, Some(libc::ENETUNREACH | libc::EHOSTUNREACH)) => SendOutcome::Unreachable,
            _ => {
                tracing::debug!(%destination, %cause, "cannot send");
                SendOutcome::Failed
            }
        }
    }
}

/// Registers a descriptor with the event loop.
#[allow(unsafe_code, reason = "AsyncFd has no safe constructor")]
fn watch<T: Into<OwnedFd> + AsRawFd>(owned: T, interest: Interest) -> io::Result<AsyncFd<T>> {
    // SAFETY: `owned` is an open descriptor. It is always the same one, and stays open until the
    // `AsyncFd` drops it.
    let registered = unsafe { AsyncFd::register_with_interest(owned, interest) };
    Ok(registered?)
}

/// Errors that may be due to an earlier datagram.
const MAY_BE_ANOTHERS: [libc::c_int; 5] = [
    libc::ECONNREFUSED,
    libc::EHOSTUNREACH,
    libc::ENETUNREACH,
    libc::EHOSTDOWN,
    libc::EMSGSIZE,
];

/// Buffers for received datagrams; one set for each shard, shared by its ports.
pub(crate) struct ReceiveBuffers {
    ready: Vec<Vec<u8>>,
    meta: Vec<RecvMeta>,
    idle: Arc<Idle>,
}

/// Buffers that were passed on and returned.
#[derive(Default)]
struct Idle(Mutex<Vec<Vec<u8>>>);

/// A buffer that was passed on.
struct LentBuffer {
    buffer: Vec<u8>,
    idle: Arc<Idle>,
}

impl AsRef<[u8]> for LentBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.buffer
    }
}

impl Drop for LentBuffer {
    fn drop(&mut self) {
        let buffer = std::mem::take(&mut self.buffer);
        let mut idle = self.idle.0.lock();
        if idle.len() < IDLE_MAX {
            idle.push(buffer);
        }
    }
}

/// A run of datagrams from one sender.
#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) from: SocketAddr,
    pub(crate) local: Option<IpAddr>,
    pub(crate) bytes: Bytes,
    pub(crate) segment: usize,
}

impl ReceiveBuffers {
    pub(crate) fn new() -> Self {
        Self {
            ready: (0..BATCH_SIZE).map(|_| fresh()).collect(),
            meta: vec![RecvMeta::default(); BATCH_SIZE],
            idle: Arc::default(),
        }
    }

    /// Receives the datagrams of one system call and passes them to `sink`.
    ///
    /// A batch that is not full has emptied the socket, and [`ShardSocket::poll_readable`] then
    /// waits for the next event. The event queue is edge triggered: later datagrams create an
    /// event, so nothing is lost without another call.
    ///
    /// # Errors
    /// `WouldBlock` if there is nothing to receive; otherwise the system's error.
    pub(crate) fn receive(
        &mut self,
        socket: &ShardSocket,
        mut sink: impl FnMut(Received),
    ) -> io::Result<()> {
        let mut slices: [IoSliceMut<'_>; BATCH_SIZE] =
            std::array::from_fn(|_| IoSliceMut::new(&mut []));
        for (slice, buffer) in slices.iter_mut().zip(&mut self.ready) {
            *slice = IoSliceMut::new(buffer);
        }
        let mut received = Ok(0);
        let _would_block = socket.io.try_io(Interest::READABLE, |io| {
            received = socket
                .state
                .recv(UdpSockRef::from(io), &mut slices, &mut self.meta);
            match &received {
                Ok(count) if *count < BATCH_SIZE => would_block(),
                Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => would_block(),
                _ => Ok(()),
            }
        });
        let count = received?;
        for index in 0..count {
            let meta = self.meta[index];
            if meta.len == 0 {
                continue;
            }
            sink(Received {
                from: meta.addr,
                local: meta.dst_ip.filter(|_| socket.bound.is_unspecified()),
                bytes: self.take(index, meta.len),
                segment: meta.stride.max(1),
            });
        }
        Ok(())
    }

    fn take(&mut self, index: usize, len: usize) -> Bytes {
        if len < COPY_BELOW {
            return Bytes::copy_from_slice(&self.ready[index][..len]);
        }
        let next = self.idle.0.lock().pop();
        let next = next.unwrap_or_else(fresh);
        let lent = LentBuffer {
            buffer: std::mem::replace(&mut self.ready[index], next),
            idle: self.idle.clone(),
        };
        let mut bytes = Bytes::from_owner(lent);
        bytes.truncate(len);
        bytes
    }
}

fn would_block<T>() -> io::Result<T> {
    Err(io::ErrorKind::WouldBlock.into())
}

fn fresh() -> Vec<u8> {
    vec![0; RUN_BYTES]
}

/// Largest run that the kernel assembles.
const RUN_BYTES: usize = 65_535;
/// Runs shorter than this are copied out.
const COPY_BELOW: usize = 8192;
/// Buffers that wait for their next use: 16 MiB a shard.
const IDLE_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    /// Events that the event loops of this process watch on descriptors of a file.
    fn watched_events(file: &impl AsRawFd) -> Vec<u32> {
        let inode = |fd: &str| std::fs::read_link(format!("/proc/self/fd/{fd}")).ok();
        let wanted = inode(&file.as_raw_fd().to_string());
        let mut events = Vec::new();
        for entry in std::fs::read_dir("/proc/self/fdinfo").unwrap() {
            // Another test may close a descriptor meanwhile.
            let info = std::fs::read_to_string(entry.unwrap().path()).unwrap_or_default();
            for line in info.lines().filter(|line| line.starts_with("tfd:")) {
                let words: Vec<_> = line.split_whitespace().collect();
                if inode(words[1]) == wanted {
                    events.push(u32::from_str_radix(words[3], 16).unwrap());
                }
            }
        }
        events
    }

    #[tokio::test]
    async fn only_a_full_socket_is_watched_for_writing() {
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let socket = UdpSocket::bind(any).unwrap();
        socket.set_nonblocking(true).unwrap();
        let to = socket.local_addr().unwrap();
        let socket = ShardSocket::new(socket).unwrap();
        let is_out = |events: &u32| events & libc::EPOLLOUT as u32 != 0;
        let watched = watched_events(&socket.io);
        assert!(!watched.is_empty());
        assert!(!watched.iter().any(is_out), "{watched:x?}");

        // The socket is not really full, so it is soon writable.
        let mut is_woken = false;
        std::future::poll_fn(|cx| {
            if is_woken {
                return Poll::Ready(());
            }
            is_woken = true;
            assert!(socket.poll_writable(cx).is_pending());
            Poll::Pending
        })
        .await;
        assert!(watched_events(&socket.io).iter().any(is_out));
        assert_eq!(socket.send(to, None, b"room", 4), SendOutcome::Sent);
        assert!(!watched_events(&socket.io).iter().any(is_out));
    }

    #[test]
    fn buffers_come_back_when_the_last_slice_is_gone() {
        let mut buffers = ReceiveBuffers::new();
        buffers.ready[0][..4].copy_from_slice(b"left");
        let run = buffers.take(0, RUN_BYTES);
        let slice = run.slice(1..4);
        let address = run.as_ptr();
        drop(run);
        assert!(buffers.idle.0.lock().is_empty());
        assert_eq!(&slice[..], b"eft");
        drop(slice);
        let _other = buffers.take(1, COPY_BELOW);
        assert_eq!(buffers.ready[1].as_ptr(), address);
        assert!(buffers.idle.0.lock().is_empty());
    }
}
