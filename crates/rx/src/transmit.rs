//! Output of the endpoint: one run of datagrams to one destination.
//!
//! UDP segmentation offload sends a contiguous buffer with one system call, as datagrams of one
//! size (the last may be shorter). The buffer here has that layout.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::Range;

/// A run of datagrams: `bytes`, cut every `segment_size` bytes.
///
/// Reuse one buffer for all calls of [`crate::Endpoint::poll_transmit`], which clears it and keeps
/// its capacity.
#[derive(Debug)]
pub struct TransmitBuffer {
    pub(crate) destination: SocketAddr,
    pub(crate) source: Option<IpAddr>,
    pub(crate) segment_size: usize,
    pub(crate) bytes: Vec<u8>,
    /// Payloads in `bytes` that the security class has not sealed yet.
    pub(crate) unsealed: Vec<Range<usize>>,
    pub(crate) max_segments: usize,
    pub(crate) max_bytes: usize,
}

impl TransmitBuffer {
    /// Creates a buffer for runs of at most `max_segments` datagrams (1 without segmentation
    /// offload, 64 on Linux). A run has at most 65,507 bytes, rounded down to whole segments.
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

    /// Destination address and port.
    #[must_use]
    pub fn destination(&self) -> SocketAddr {
        self.destination
    }

    /// Local address to send from; with `None` the system chooses.
    #[must_use]
    pub fn source(&self) -> Option<IpAddr> {
        self.source
    }

    /// Size of each datagram but the last, bytes.
    #[must_use]
    pub fn segment_size(&self) -> usize {
        self.segment_size
    }

    /// All datagrams, concatenated.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Iterates over the datagrams.
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

/// Largest UDP payload over IPv4, and the most that the kernel takes as one segmented send.
const MAX_RUN_BYTES: usize = 65_507;
