//! Round-trip time of a peer and the retransmission time that follows from it.
//!
//! srtt and deviation as in RFC 6298 §2 (gains 1/8 and 1/4), shared by all calls to a peer, so a
//! short call profits from earlier ones. The margin of 200 ms on top is OpenAFS's: its receivers
//! delay acknowledgements by 100 ms (rx-wire facts 2.5).

/// Before the first sample, microseconds (RFC 6298 §2.1).
const INITIAL_RTO: u64 = 1_000_000;
/// For delayed acknowledgements.
const ACK_MARGIN: u64 = 200_000;
/// Least spread assumed.
const MIN_SPREAD: u64 = 20_000;
/// Largest, also after doubling.
pub(crate) const MAX_RTO: u64 = 60_000_000;

/// All in microseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rtt {
    pub(crate) smoothed: u64,
    pub(crate) deviation: u64,
    /// Smallest ever; the congestion controller has its own, which forgets.
    pub(crate) least: u64,
    pub(crate) samples: u32,
}

impl Rtt {
    pub(crate) fn sample(&mut self, micros: u64) {
        let micros = micros.clamp(1, MAX_RTO);
        if self.samples == 0 {
            self.smoothed = micros;
            self.deviation = micros / 2;
            self.least = micros;
        } else {
            let error = self.smoothed.abs_diff(micros);
            self.deviation = (self.deviation * 3 + error) / 4;
            self.smoothed = (self.smoothed * 7 + micros) / 8;
            self.least = self.least.min(micros);
        }
        self.samples = self.samples.saturating_add(1);
    }

    /// Retransmission time without backoff.
    pub(crate) fn rto(&self) -> u64 {
        if self.samples == 0 {
            return INITIAL_RTO;
        }
        ((self.smoothed + 4 * self.deviation).max(MIN_SPREAD) + ACK_MARGIN).min(MAX_RTO)
    }
}
