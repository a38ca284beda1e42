//! Round-trip time of a peer and the retransmission timeout derived from it.
//!
//! The smoothed round trip and its deviation follow RFC 6298 §2 (gains 1/8 and 1/4). All calls to a
//! peer share them, so a short call profits from earlier ones. OpenAFS's margin of 200 ms is added:
//! its receivers delay acknowledgements by 100 ms (rx-wire facts 2.5).

/// Timeout before the first sample, microseconds (RFC 6298 §2.1).
const INITIAL_RTO: u64 = 1_000_000;
/// Added for acknowledgements that the receiver delays, microseconds.
const ACK_MARGIN: u64 = 200_000;
/// Lower bound of the round trip plus four deviations, microseconds.
const MIN_SPREAD: u64 = 20_000;
/// Longest timeout, also after doubling, microseconds.
pub(crate) const MAX_RTO: u64 = 60_000_000;

/// Round-trip estimate; all times in microseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rtt {
    pub(crate) smoothed: u64,
    pub(crate) deviation: u64,
    /// Smallest sample ever. The congestion controller keeps its own minimum, which expires.
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
