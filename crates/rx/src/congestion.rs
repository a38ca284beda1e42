//! Congestion control and pacing: a model of the path in the manner of BBR.
//!
//! 1. Each acknowledgement gives a delivery-rate sample: bytes delivered between the sending of a
//!    packet and its acknowledgement. They are divided by the longer of the sending and the
//!    acknowledging time (draft-cheng-iccrg-delivery-rate-estimation). The bandwidth of the path is
//!    the maximum over ten round trips; its length is the minimum round trip over ten seconds.
//! 2. Start-up doubles the rate each round trip until three rounds in a row gain less than 25 %.
//!    Next, the queue built by start-up is drained. From then on the rate is the bandwidth, with a
//!    probe of +25 % and -25 % in two of eight phases, one round trip each.
//! 3. The window is twice the bandwidth times the length, plus some runs for batching. After ten
//!    seconds without a new minimum, the sender limits itself to four packets for 200 ms to measure
//!    one.
//! 4. Single losses are ignored. On long paths they are not congestion, and halving the window
//!    would leave the path idle. Reno needs a loss rate under 10^-6 for 100 Mbit/s at 100 ms. A
//!    loss of more than a tenth of a round means that the bottleneck's queue is shorter than the
//!    model assumes. The window is then cut by 30 %, and may grow by 25 % in each round without
//!    such losses.
//! 5. A probe that found at least 10 % more bandwidth is followed by another one. A path that
//!    became faster, or whose start-up was cut short, is thus filled within seconds.
//! 6. If the capacity of a path is known from all its calls together ([`crate::share`]), a new call
//!    starts with its share as the window. It sends the share evenly over the first round trip and
//!    continues as in start-up.
//!
//! A sample is limited if the sender had nothing to send or the peer's receive window stopped it.
//! Such samples can only raise the estimate. A stock peer with its 32 packets is always limited, so
//! its start-up never ends.

use crate::time::Time;

/// Gain that doubles the rate each round: 2/ln 2, in units of 1/256.
const STARTUP_GAIN: u64 = 739;
const DRAIN_GAIN: u64 = 88;
const UNITY: u64 = 256;
const CYCLE: [u64; 8] = [320, 192, 256, 256, 256, 256, 256, 256];
/// Rounds over which the maximum of the bandwidth is taken.
const BANDWIDTH_ROUNDS: u64 = 10;
/// Lifetime of a minimum round trip, microseconds.
const MIN_RTT_LIFE: u64 = 10_000_000;
const PROBE_RTT_TIME: u64 = 200_000;
/// Paths with a shorter round trip are not paced, because timers are too coarse. Microseconds.
pub(crate) const UNPACED_RTT: u64 = 1_000;
/// Smallest window, packets.
const MIN_PACKETS: u64 = 4;
/// The part of a round that may be lost without counting as congestion: 1/10.
const LOSS_TOLERANCE: u64 = 10;

/// A round must lose more packets than this before it counts as congestion, in start-up and later.
const STARTUP_LOSS: u64 = 20;
const MIN_LOSS: u64 = 3;

/// Rate in bytes per second of `bytes` in `micros`.
pub(crate) fn rate(bytes: u64, micros: u64) -> u64 {
    let rate = u128::from(bytes) * 1_000_000 / u128::from(micros.max(1));
    u64::try_from(rate).unwrap_or(u64::MAX)
}

/// The information of one acknowledgement.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RateSample {
    /// Bytes newly acknowledged.
    pub(crate) acked: u64,
    /// Bytes newly considered lost.
    pub(crate) lost: u64,
    /// Bytes considered lost earlier that arrived after all.
    pub(crate) found: u64,
    /// Delivery rate, bytes per second; 0: no sample.
    pub(crate) rate: u64,
    /// Round trip, microseconds; 0: no sample.
    pub(crate) rtt: u64,
    /// Bytes delivered when the newest acknowledged packet was sent.
    pub(crate) prior_delivered: u64,
    /// Bytes delivered now.
    pub(crate) delivered: u64,
    /// Whether something else than the path limited the rate.
    pub(crate) limited: bool,
    /// Bytes in flight now.
    pub(crate) in_flight: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Startup,
    Drain,
    Probe,
    ProbeRtt,
}

/// Path estimate that a finished call leaves to the next call to the same peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PathModel {
    pub(crate) bandwidth: u64,
    pub(crate) min_rtt: u64,
    pub(crate) at: Time,
}

/// Start parameters of a call on a path with a known capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Start {
    /// Bytes to send in the first round trip.
    pub(crate) window: u64,
    /// Round trip, microseconds.
    pub(crate) rtt: u64,
}

#[derive(Debug)]
pub(crate) struct Congestion {
    mode: Mode,
    /// (round, rate): the best sample, and the candidates that follow when it expires.
    best: [(u64, u64); 3],
    round: u64,
    round_end: u64,
    full_bandwidth: u64,
    full_rounds: u8,
    filled: bool,
    min_rtt: u64,
    min_rtt_at: Time,
    cycle: usize,
    cycle_at: Time,
    bandwidth_before_probe: u64,
    probe_rtt_end: Option<Time>,
    window: u64,
    window_before_probe: u64,
    loss_cap: u64,
    share_cap: u64,
    round_acked: u64,
    round_lost: u64,
    packet: u64,
    initial: u64,
    /// Whether the first round trip is sent evenly as [`Start`] says.
    even: bool,
    /// Bytes that pacing permits now; negative after a burst.
    credit: i64,
    credit_at: Time,
}

impl Congestion {
    /// `initial`: initial window, bytes. `packet`: usual packet size.
    pub(crate) fn new(now: Time, initial: u64, packet: u64, path: Option<PathModel>) -> Self {
        let mut new = Self {
            mode: Mode::Startup,
            best: [(0, 0); 3],
            round: 0,
            round_end: 0,
            full_bandwidth: 0,
            full_rounds: 0,
            filled: false,
            min_rtt: 0,
            min_rtt_at: now,
            cycle: 2,
            cycle_at: now,
            bandwidth_before_probe: u64::MAX / 16,
            probe_rtt_end: None,
            window: initial,
            window_before_probe: 0,
            loss_cap: u64::MAX,
            share_cap: u64::MAX,
            round_acked: 0,
            round_lost: 0,
            packet,
            initial,
            even: false,
            credit: 0,
            credit_at: now,
        };
        if let Some(path) = path {
            new.min_rtt = path.min_rtt;
            new.best = [(0, path.bandwidth); 3];
        }
        new
    }

    /// Controller of a call that starts with its share of a path.
    pub(crate) fn with_share(now: Time, packet: u64, start: Start) -> Self {
        let mut new = Self::new(now, start.window, packet, None);
        let rate = rate(start.window, start.rtt);
        new.min_rtt = start.rtt;
        new.best = [(0, rate); 3];
        new.even = true;
        // The first packets are sent without waiting.
        new.credit = i64::try_from(2 * Self::burst(rate, packet)).unwrap_or(i64::MAX);
        new
    }

    /// Returns the estimate for the next call to this peer; `None` if there is none yet.
    pub(crate) fn model(&self, now: Time) -> Option<PathModel> {
        (self.bandwidth() > 0 && self.min_rtt > 0).then(|| PathModel {
            bandwidth: self.bandwidth(),
            min_rtt: self.min_rtt,
            at: now,
        })
    }

    /// Sets the packet size.
    pub(crate) fn set_packet(&mut self, packet: u64) {
        self.packet = packet;
    }

    /// Congestion window, bytes.
    pub(crate) fn window(&self) -> u64 {
        self.window.min(self.loss_cap).min(self.share_cap)
    }

    pub(crate) const fn bandwidth(&self) -> u64 {
        self.best[0].1
    }

    fn bdp(&self, gain: u64) -> u64 {
        let bits = u128::from(self.bandwidth()) * u128::from(self.min_rtt) * u128::from(gain);
        u64::try_from(bits / (1_000_000 * u128::from(UNITY))).unwrap_or(u64::MAX)
    }

    #[expect(clippy::indexing_slicing, reason = "a remainder of the length")]
    const fn pacing_gain(&self) -> u64 {
        match self.mode {
            Mode::Startup if self.even => UNITY,
            Mode::Startup => STARTUP_GAIN,
            Mode::Drain => DRAIN_GAIN,
            Mode::Probe => CYCLE[self.cycle % CYCLE.len()],
            Mode::ProbeRtt => UNITY,
        }
    }

    /// Pacing rate, bytes per second; `None`: only the window limits.
    pub(crate) fn pacing_rate(&self) -> Option<u64> {
        if self.min_rtt < UNPACED_RTT || self.bandwidth() == 0 {
            return None;
        }
        let rate =
            u128::from(self.bandwidth()) * u128::from(self.pacing_gain()) / u128::from(UNITY);
        Some(
            u64::try_from(rate)
                .unwrap_or(u64::MAX)
                .max(self.packet * 10),
        )
    }

    /// Returns the bytes that pacing permits now.
    pub(crate) fn allowance(&mut self, now: Time) -> u64 {
        let Some(rate) = self.pacing_rate() else {
            // Bytes that are not paced are no debt. The round trip may grow later, and pacing
            // begins.
            self.credit = 0;
            self.credit_at = now;
            return u64::MAX;
        };
        let passed = now.micros_since(self.credit_at).min(100_000);
        self.credit_at = now;
        let earned = rate.saturating_mul(passed) / 1_000_000;
        let most = Self::burst(rate, self.packet) * 2;
        let credit = self
            .credit
            .saturating_add(i64::try_from(earned).unwrap_or(i64::MAX));
        self.credit = credit.min(i64::try_from(most).unwrap_or(i64::MAX));
        u64::try_from(self.credit).unwrap_or(0)
    }

    pub(crate) fn spend(&mut self, bytes: u64) {
        self.credit = self
            .credit
            .saturating_sub(i64::try_from(bytes).unwrap_or(i64::MAX));
    }

    /// Time at which pacing permits a burst of useful size.
    pub(crate) fn next_burst(&self, now: Time) -> Time {
        let Some(rate) = self.pacing_rate() else {
            return now;
        };
        let wanted = i64::try_from(Self::burst(rate, self.packet)).unwrap_or(i64::MAX);
        let missing = u64::try_from(wanted.saturating_sub(self.credit)).unwrap_or(0);
        now.plus_micros((missing.saturating_mul(1_000_000) / rate.max(1)).max(1))
    }

    /// The bytes of a millisecond, at least two packets.
    fn burst(rate: u64, packet: u64) -> u64 {
        (rate / 1_000).max(2 * packet)
    }

    /// Sets this call's share of the known capacity of the path, and ends start-up when it is
    /// reached.
    ///
    /// A call that has less than half of its share, because others ended or its packets were lost,
    /// gets the whole share at once.
    pub(crate) fn shares(&mut self, now: Time, bytes: Option<u64>) {
        self.share_cap = u64::MAX;
        let Some(bytes) = bytes.filter(|_| self.round > 0 && self.min_rtt >= UNPACED_RTT) else {
            return;
        };
        // Room for probes: the sum of what the calls find may exceed the capacity of the path.
        self.share_cap = (bytes + bytes / 4 + self.runs()).max(MIN_PACKETS * self.packet);
        // Deliveries lag by one round trip, so a call is compared with half of its share.
        let starts = !self.filled && self.window >= bytes;
        let has_little = self.mode == Mode::Probe && self.bdp(UNITY) < bytes / 2;
        if starts || has_little {
            let rate = rate(bytes, self.min_rtt).max(self.bandwidth());
            self.best = [(self.round, rate); 3];
        }
        if starts {
            self.filled = true;
            self.enter_probe(now);
        }
    }

    pub(crate) fn on_ack(&mut self, now: Time, sample: &RateSample) {
        self.count_round(sample);
        self.update_bandwidth(sample);
        self.update_min_rtt(now, sample);
        self.change_mode(now, sample);
        self.update_window(sample);
    }

    fn count_round(&mut self, sample: &RateSample) {
        self.round_acked += sample.acked;
        self.round_lost = (self.round_lost + sample.lost).saturating_sub(sample.found);
        if sample.acked == 0 || sample.prior_delivered < self.round_end {
            return;
        }
        self.round += 1;
        self.even = false;
        self.round_end = sample.delivered;
        self.judge_losses(sample.in_flight);
        self.judge_startup(sample.limited);
        self.round_acked = 0;
        self.round_lost = 0;
    }

    fn judge_losses(&mut self, in_flight: u64) {
        let all = self.round_acked + self.round_lost;
        let floor = MIN_PACKETS * self.packet;
        // The first bursts have too few packets to distinguish loss from reordering.
        let least = if self.mode == Mode::Startup {
            STARTUP_LOSS
        } else {
            MIN_LOSS
        };
        if self.round_lost > least * self.packet && self.round_lost * LOSS_TOLERANCE > all {
            let reached = self.window().min((in_flight + self.round_acked).max(floor));
            self.loss_cap = (reached / 10 * 7).max(floor);
            if self.mode == Mode::Startup {
                self.filled = true;
            }
        } else if self.loss_cap != u64::MAX {
            self.loss_cap += self.loss_cap / 4;
            if self.loss_cap > 2 * self.window {
                self.loss_cap = u64::MAX;
            }
        }
    }

    fn judge_startup(&mut self, limited: bool) {
        if self.filled || limited {
            return;
        }
        if self.bandwidth() * 4 >= self.full_bandwidth * 5 {
            self.full_bandwidth = self.bandwidth();
            self.full_rounds = 0;
            return;
        }
        self.full_rounds += 1;
        self.filled = self.full_rounds >= 3;
    }

    fn update_bandwidth(&mut self, sample: &RateSample) {
        if sample.rate == 0 || (sample.limited && sample.rate < self.bandwidth()) {
            return;
        }
        let new = (self.round, sample.rate);
        let expired = |(round, _): (u64, u64), rounds| self.round.saturating_sub(round) > rounds;
        if sample.rate >= self.best[0].1 || expired(self.best[2], BANDWIDTH_ROUNDS) {
            self.best = [new; 3];
            return;
        }
        if sample.rate >= self.best[1].1 {
            self.best[1] = new;
            self.best[2] = new;
        } else if sample.rate >= self.best[2].1 {
            self.best[2] = new;
        }
        if expired(self.best[0], BANDWIDTH_ROUNDS) {
            self.best = [self.best[1], self.best[2], new];
        } else if self.best[1].0 == self.best[0].0 && expired(self.best[1], BANDWIDTH_ROUNDS / 4) {
            self.best[1] = new;
            self.best[2] = new;
        } else if self.best[2].0 == self.best[1].0 && expired(self.best[2], BANDWIDTH_ROUNDS / 2) {
            self.best[2] = new;
        }
    }

    fn update_min_rtt(&mut self, now: Time, sample: &RateSample) {
        if sample.rtt == 0 {
            return;
        }
        let stale = now.micros_since(self.min_rtt_at) > MIN_RTT_LIFE;
        if self.min_rtt == 0 || sample.rtt <= self.min_rtt || (stale && self.mode == Mode::ProbeRtt)
        {
            self.min_rtt = sample.rtt;
            self.min_rtt_at = now;
        } else if stale && self.filled && self.mode != Mode::ProbeRtt && self.min_rtt >= UNPACED_RTT
        {
            self.mode = Mode::ProbeRtt;
            self.window_before_probe = self.window;
            self.probe_rtt_end = None;
        } else if stale && self.min_rtt < UNPACED_RTT {
            // On short paths the queues are inside the hosts, and a window of four packets would
            // stall them.
            self.min_rtt = sample.rtt;
            self.min_rtt_at = now;
        }
    }

    fn change_mode(&mut self, now: Time, sample: &RateSample) {
        match self.mode {
            Mode::Startup if self.filled => self.mode = Mode::Drain,
            Mode::Drain if sample.in_flight <= self.bdp(UNITY) => self.enter_probe(now),
            Mode::Probe => {
                let phase_over = now.micros_since(self.cycle_at) > self.min_rtt;
                let drained = self.cycle == 1 && sample.in_flight <= self.bdp(UNITY);
                if phase_over || drained {
                    self.next_phase(now);
                }
            }
            Mode::ProbeRtt => match self.probe_rtt_end {
                None if sample.in_flight <= MIN_PACKETS * self.packet => {
                    self.probe_rtt_end = Some(now.plus_micros(PROBE_RTT_TIME));
                }
                Some(end) if now >= end => {
                    self.min_rtt_at = now;
                    self.window = self.window.max(self.window_before_probe);
                    self.enter_probe(now);
                }
                _ => {}
            },
            Mode::Startup | Mode::Drain => {}
        }
    }

    /// The result of a probe arrives in the phase after it. If the bandwidth grew by more than 10
    /// %, the next probe follows at once instead of six phases later.
    fn next_phase(&mut self, now: Time) {
        self.cycle_at = now;
        if self.cycle == 1 && self.bandwidth() * 10 > self.bandwidth_before_probe * 11 {
            self.cycle = 0;
        } else {
            self.cycle = (self.cycle + 1) % CYCLE.len();
        }
        if self.cycle == 0 {
            self.bandwidth_before_probe = self.bandwidth();
        }
    }

    fn enter_probe(&mut self, now: Time) {
        self.mode = Mode::Probe;
        self.cycle = 2;
        self.cycle_at = now;
    }

    /// Bytes in flight because packets are sent and received in runs.
    fn runs(&self) -> u64 {
        3 * (self.bandwidth() / 1_000).clamp(2 * self.packet, 65_536)
    }

    fn update_window(&mut self, sample: &RateSample) {
        let floor = MIN_PACKETS * self.packet;
        if self.mode == Mode::ProbeRtt {
            self.window = floor;
            return;
        }
        let gain = if self.filled { 2 * UNITY } else { STARTUP_GAIN };
        let short = if self.min_rtt < UNPACED_RTT {
            SHORT_PATH_PACKETS * self.packet
        } else {
            0
        };
        let target = (self.bdp(gain) + self.runs()).max(floor).max(short);
        if self.filled {
            self.window = (self.window + sample.acked).min(target);
        } else if self.window < target || sample.delivered < self.initial {
            self.window += sample.acked;
        }
        self.window = self.window.max(floor);
    }

    /// Resets the window when everything in flight is given up.
    pub(crate) fn on_timeout(&mut self) {
        self.window = MIN_PACKETS * self.packet;
        self.credit = 0;
    }
}

/// Smallest window on short paths, whose round trip is mostly batching in the hosts. Packets.
const SHORT_PATH_PACKETS: u64 = 256;

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of one run, and of one acknowledgement.
    const RUN: u64 = 64_000;

    fn acknowledge(control: &mut Congestion, now: Time, delivered: u64, rtt: u64) {
        control.on_ack(
            now,
            &RateSample {
                acked: RUN,
                rate: 20_000_000,
                rtt,
                prior_delivered: delivered - RUN,
                delivered,
                ..RateSample::default()
            },
        );
    }

    #[test]
    fn a_call_goes_on_when_its_round_trip_grows_and_pacing_begins() {
        let mut now = Time::default();
        let mut control = Congestion::new(now, 23_104, 1_444, None);
        let mut delivered = 0;
        for _ in 0..2_000 {
            now = now.plus_micros(3_000);
            assert_eq!(control.allowance(now), u64::MAX, "unpaced");
            control.spend(RUN);
            delivered += RUN;
            acknowledge(&mut control, now, delivered, UNPACED_RTT / 2);
        }
        // The estimate of the least round trip expires.
        for _ in 0..20 {
            now = now.plus_micros(1_000_000);
            let _ = control.allowance(now);
            control.spend(RUN);
            delivered += RUN;
            acknowledge(&mut control, now, delivered, 25 * UNPACED_RTT);
        }
        assert!(control.pacing_rate().is_some(), "paced: {control:?}");
        let wait = control.next_burst(now).micros_since(now);
        assert!(wait < 100_000, "the next burst is {wait} microseconds away");
        assert!(control.allowance(now.plus_micros(wait)) > 0);
    }
}
