//! What the endpoint wants sent: one run of datagrams to one destination.
//!
//! UDP segmentation offload sends a contiguous buffer as datagrams of one size (the last may be
//! shorter) with one system call; so that is the shape of the buffer here.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::Range;

/// A run of datagrams: `bytes` cut every `segment_size` bytes. Reuse one buffer for all calls of
/// [`crate::Endpoint::poll_transmit`]; it is cleared there and keeps its capacity.
#[derive(Debug)]
pub struct TransmitBuffer {
    pub(crate) destination: SocketAddr,
    pub(crate) source: Option<IpAddr>,
    pub(crate) segment_size: usize,
    pub(crate) bytes: Vec<u8>,
    /// Payloads in `bytes` that the security class is still to seal.
    pub(crate) unsealed: Vec<Range<usize>>,
    pub(crate) max_segments: usize,
    pub(crate) max_bytes: usize,
}

impl TransmitBuffer {
    /// A buffer that takes runs of at most `max_segments` datagrams (1 where segmentation offload
    /// is missing, 64 on Linux) and 65,507 - 65,507 mod segment bytes.
    #[must_use]
    pub fn new(max_segments: usize) -> Self {
        let max_segments = max_segments.clamp(1, 64);
        Self {
            destination: SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0),
            source: None,
            segment_size: 0,
            unsealed: Vec::new(),
            bytes: Vec::with_capacity(if max_segments == 1 {
                2048
            } else {
                MAX_RUN_BYTES
            }),
            max_segments,
            max_bytes: MAX_RUN_BYTES,
        }
    }

    /// Where to send.
    #[must_use]
    pub fn destination(&self) -> SocketAddr {
        self.destination
    }

    /// From which local address; `None` leaves it to the system.
    #[must_use]
    pub fn source(&self) -> Option<IpAddr> {
        self.source
    }

    /// Bytes in each datagram but the last.
    #[must_use]
    pub fn segment_size(&self) -> usize {
        self.segment_size
    }

    /// All datagrams, one after the other.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Each datagram.
    pub fn segments(&self) -> impl Iterator<Item = &[u8]> {
        self.bytes.chunks(self.segment_size.max(1))
    }

    pub(crate) fn start(&mut self, destination: SocketAddr, source: Option<IpAddr>) {
        self.destination = destination;
        self.source = source;
        self.segment_size = 0;
        self.bytes.clear();
        self.unsealed.clear();
    }
}

/// Largest UDP payload over IPv4, which is also what the kernel takes as one segmented send.
const MAX_RUN_BYTES: usize = 65_507;
