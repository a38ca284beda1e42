//! Bytes that an endpoint holds for its calls, in total and for unverified addresses.

use crate::call::Call;
use crate::shared::Holding;

#[derive(Debug)]
pub(super) struct Buffered {
    /// Received and not read.
    pub(super) received: usize,
    /// Written and not acknowledged.
    pub(super) sent: usize,
    /// The part of both on connections of unverified addresses.
    pub(super) unverified: Holding,
}

impl Buffered {
    pub(super) const fn new(unverified: Holding) -> Self {
        Self {
            received: 0,
            sent: 0,
            unverified,
        }
    }

    pub(super) fn add_received(&mut self, call: &Call, bytes: usize) {
        self.received += bytes;
        if call.unverified {
            self.unverified.add(bytes);
        }
    }

    pub(super) fn sub_received(&mut self, call: &Call, bytes: usize) {
        self.received -= bytes;
        if call.unverified {
            self.unverified.sub(bytes);
        }
    }

    pub(super) fn add_sent(&mut self, call: &Call, bytes: usize) {
        self.sent += bytes;
        if call.unverified {
            self.unverified.add(bytes);
        }
    }

    pub(super) fn sub_sent(&mut self, call: &Call, bytes: usize) {
        self.sent -= bytes;
        if call.unverified {
            self.unverified.sub(bytes);
        }
    }

    /// Stops counting the call as unverified: its address is verified, or its connection is
    /// removed.
    pub(super) fn verified(&mut self, call: &mut Call) {
        if std::mem::take(&mut call.unverified) {
            self.unverified
                .sub(call.receive.bytes() + call.send.buffered());
        }
    }
}
