//! Capacity of the path to a peer, measured over all calls, so that a call on a known path starts
//! with its share.
//!
//! 1. A call alone begins with a few packets and doubles them each round trip. At 100 ms it takes
//!    seven round trips to send a MiB, whatever the capacity. Most calls of file servers are no
//!    longer than that. If each call measures for itself, the knowledge of earlier calls is lost.
//!    Source of the idea: RFC 9040 (state shared by connections to the same host), and "careful
//!    resume" (draft-ietf-tsvwg-careful-resume).
//! 2. Time is divided into rounds of one round trip. The estimate of the capacity is the most that
//!    was acknowledged in any round, for all calls together. It cannot exceed the capacity, however
//!    long the queues are. The path is full in a round in which every packet stood in a queue. In
//!    such a round the smallest round trip is a quarter longer than the smallest ever, as in
//!    HyStart (RFC 9406). Calls then end their start-up at their share.
//! 3. A round with a loss of more than a tenth exceeded the capacity. The estimate then becomes
//!    what arrived in that round, or seven tenths of the old estimate if that is more. A
//!    retransmission timeout of a call halves it. It expires after a minute without
//!    acknowledgements.
//! 4. Concurrent calls divide the capacity by their largest number in this round and the one
//!    before. A new call divides by the largest recent number, which decays by a quarter each
//!    round. The number of calls that will start within this round trip is unknown. Each gets at
//!    most half of what the calls before it left, so all together start with no more than the
//!    capacity. A call sends its share over a round trip, not at once ([`crate::congestion`]).
//! 5. Calls need unequal parts. If the path carried less than its capacity in the round before,
//!    each call may grow in proportion to its part of that round. A large call among many small
//!    ones so soon gets what they leave. This does not apply while losses are high.

use std::ops::Range;

use crate::congestion::{RateSample, rate};
use crate::time::Time;

/// Lifetime of the estimate without acknowledgements, microseconds.
pub(crate) const LIFE: u64 = 60_000_000;
/// Largest part of a round that may be lost: 1/10.
const LOSS_TOLERANCE: u64 = 10;
/// If a round loses more than 1/50, unused capacity is not given to other calls.
const LOSSY: u64 = 50;
/// Fewer lost bytes in a round have no effect on the estimate.
const LEAST_LOST: u64 = 20_000;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Share {
    round: u32,
    round_at: Time,
    acked: u64,
    /// Bytes acknowledged in the round before.
    acked_before: u64,
    lost: u64,
    /// Whether more than [`LOSSY`] was lost in the round before.
    lossy: bool,
    /// Calls with an acknowledgement or a start in this round; below, in the round before.
    calls: u32,
    calls_before: u32,
    /// Smallest round trip in this round, microseconds; 0: none.
    rtt: u64,
    /// Largest number of calls in recent rounds; decays.
    lately: u32,
    /// Bytes granted to starting calls in this round.
    started: u64,
    /// Estimated capacity for all calls, bytes per second; 0: unknown.
    rate: u64,
    /// The estimate at which the path was full; 0: it was not full yet.
    full: u64,
}

/// The counters of one call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counted {
    /// Round in which the call was last counted.
    round: u32,
    /// Bytes acknowledged in that round; below, in the round before.
    acked: u64,
    before: u64,
}

impl Share {
    /// Returns the bytes that a new call may send in its first round trip, at most `worth.end`.
    /// `None`: unknown, or not more than `worth.start`.
    pub(crate) fn start(
        &mut self,
        now: Time,
        rtt: u64,
        worth: Range<u64>,
        counted: &mut Counted,
    ) -> Option<u64> {
        self.turn(now, rtt);
        self.count(counted);
        let carries = self.carries(rtt);
        let share = carries / self.sharers().max(u64::from(self.lately));
        let left = carries.saturating_sub(self.started) / 2;
        let start = share.min(left).min(worth.end);
        if start <= worth.start {
            return None;
        }
        self.started += start;
        Some(start)
    }

    /// Returns the bytes per round trip that a call beside others can expect at most. `None`: there
    /// are no others, or the path may carry more than the estimate.
    pub(crate) fn bound(&self, rtt: u64, counted: &Counted) -> Option<u64> {
        let sharers = self.sharers();
        if self.full == 0 || self.rate == 0 || sharers < 2 {
            return None;
        }
        let carries = self.carries(rtt);
        let part = carries / sharers;
        if self.lossy {
            return Some(part);
        }
        // The calls of the last round, scaled up together, fill the path.
        let more = u128::from(counted.before) * u128::from(carries);
        let more = more / u128::from(self.acked_before.max(1));
        Some(part.max(u64::try_from(more).unwrap_or(u64::MAX)))
    }

    fn carries(&self, rtt: u64) -> u64 {
        let carries = u128::from(self.rate) * u128::from(rtt) / 1_000_000;
        u64::try_from(carries).unwrap_or(u64::MAX)
    }

    fn sharers(&self) -> u64 {
        u64::from(self.calls.max(self.calls_before).max(1))
    }

    /// Processes an acknowledgement for a call. `least`: the smallest round trip ever,
    /// microseconds.
    pub(crate) fn on_ack(
        &mut self,
        now: Time,
        least: u64,
        arrived: &RateSample,
        counted: &mut Counted,
    ) {
        self.turn(now, least);
        self.count(counted);
        self.acked += arrived.acked;
        counted.acked += arrived.acked;
        self.lost = (self.lost + arrived.lost).saturating_sub(arrived.found);
        if arrived.rtt > 0 {
            let before = if self.rtt == 0 { u64::MAX } else { self.rtt };
            self.rtt = before.min(arrived.rtt);
        }
    }

    /// A call's retransmission timeout expired.
    pub(crate) fn on_timeout(&mut self) {
        self.rate /= 2;
    }

    fn count(&mut self, counted: &mut Counted) {
        if counted.round == self.round {
            return;
        }
        let follows = counted.round.wrapping_add(1) == self.round;
        counted.before = if follows { counted.acked } else { 0 };
        counted.acked = 0;
        counted.round = self.round;
        self.calls += 1;
    }

    /// Ends the round if its time is over.
    fn turn(&mut self, now: Time, rtt: u64) {
        let passed = now.micros_since(self.round_at);
        if self.round > 0 && passed < rtt.max(1_000) {
            return;
        }
        if self.round > 0 {
            self.judge(passed, rtt);
        }
        if self.calls > 0 {
            self.lately = self.calls.max(self.lately - self.lately.div_ceil(4));
        }
        // If the round was long, the round directly before the next one had no calls.
        self.lossy = self.lost * LOSSY > self.acked;
        let now_before = passed <= 2 * rtt;
        self.calls_before = if now_before { self.calls } else { 0 };
        self.acked_before = if now_before { self.acked } else { 0 };
        self.calls = 0;
        self.started = 0;
        self.rtt = 0;
        self.acked = 0;
        self.lost = 0;
        // Round 0 stands for calls that were never counted.
        self.round = self.round.wrapping_add(1).max(1);
        self.round_at = now;
    }

    fn judge(&mut self, passed: u64, least: u64) {
        if passed > LIFE {
            self.rate = 0;
            self.full = 0;
            return;
        }
        let carried = rate(self.acked, passed);
        let too_much = self.lost > LEAST_LOST
            && self.lost * LOSS_TOLERANCE > self.acked.saturating_add(self.lost);
        if too_much {
            // Losses are noticed late, when little may still arrive in the round.
            self.full = self.full.max(self.rate);
            self.rate = self.rate.min(carried.max(self.rate / 10 * 7));
            return;
        }
        let stood = self.rtt > least + least / 4;
        if stood && carried > self.rate / 2 {
            self.full = self.full.max(carried);
        } else if carried > self.full + self.full / 8 {
            self.full = 0;
        }
        self.rate = self.rate.max(carried);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: u64 = 100_000;
    const ANY: Range<u64> = 0..u64::MAX;

    fn at(ms: u64) -> Time {
        Time::ZERO.plus_micros(ms * 1_000 + 1)
    }

    fn arrived(acked: u64, lost: u64) -> RateSample {
        RateSample {
            acked,
            lost,
            ..RateSample::default()
        }
    }

    #[test]
    fn a_share_is_of_what_all_have_moved() {
        let mut share = Share::default();
        let mut calls = [Counted::default(); 4];
        assert_eq!(share.start(at(0), RTT, ANY, &mut calls[0]), None);
        for round in 0..3 {
            for call in &mut calls {
                share.on_ack(at(round * 100 + 10), RTT, &arrived(250_000, 0), call);
            }
        }
        // Four calls were active in this round, and the new one is the fifth.
        let mut new = Counted::default();
        assert_eq!(share.start(at(250), RTT, ANY, &mut new), Some(200_000));
        // Later no other call is active, but as many as recently, or more, may start.
        let mut starts = |ms: u64, calls: u64| -> Vec<u64> {
            let mut start = |n| share.start(at(ms + n), RTT, ANY, &mut Counted::default());
            (0..calls).filter_map(&mut start).collect()
        };
        assert_eq!(starts(1_000, 1), [200_000]);
        assert_eq!(starts(1_300, 1), [333_333]);
        let many = starts(1_600, 20);
        assert!(many[0] == 500_000 && many.iter().sum::<u64>() <= 1_000_000);
        let mut new = Counted::default();
        assert_eq!(
            share.start(at(2_000), RTT, 0..40_000, &mut new),
            Some(40_000)
        );
        let mut new = Counted::default();
        let worth = 60_000..u64::MAX;
        assert_eq!(share.start(at(2_010), RTT, worth, &mut new), None);
        assert_eq!(share.start(at(70_000), RTT, ANY, &mut new), None);
    }

    #[test]
    fn losses_lower_it_and_a_single_packet_does_not() {
        let mut share = Share::default();
        let mut call = Counted::default();
        let start = |share: &mut Share, ms, call: &mut _| share.start(at(ms), RTT, ANY, call);
        share.on_ack(at(0), RTT, &arrived(0, 0), &mut call);
        share.on_ack(at(50), RTT, &arrived(1_000_000, 0), &mut call);
        share.on_ack(at(100), RTT, &arrived(300_000, 1_400), &mut call);
        assert_eq!(start(&mut share, 150, &mut call), Some(500_000));
        share.on_ack(at(200), RTT, &arrived(400_000, 300_000), &mut call);
        assert_eq!(start(&mut share, 250, &mut call), Some(500_000));
        assert_eq!(start(&mut share, 300, &mut call), Some(350_000));
        share.on_timeout();
        assert_eq!(share.carries(RTT), 350_000);
    }

    /// Acknowledgements for two calls at one time.
    fn two(share: &mut Share, ms: u64, calls: &mut [Counted; 2], acked: [u64; 2], rtt: u64) {
        for (call, acked) in calls.iter_mut().zip(acked) {
            let arrived = RateSample {
                acked,
                rtt,
                ..RateSample::default()
            };
            share.on_ack(at(ms), RTT, &arrived, call);
        }
    }

    #[test]
    fn a_path_is_full_when_every_packet_stood_in_a_queue() {
        let mut share = Share::default();
        let mut calls = [Counted::default(); 2];
        two(&mut share, 0, &mut calls, [500_000; 2], 180_000);
        two(&mut share, 10, &mut calls, [0; 2], 100_000);
        two(&mut share, 100, &mut calls, [500_000; 2], 130_000);
        assert_eq!(
            share.bound(RTT, &calls[0]),
            None,
            "one packet did not stand in a queue"
        );
        two(&mut share, 200, &mut calls, [1_500_000; 2], 101_000);
        assert_eq!(share.bound(RTT, &calls[0]), Some(500_000));
        two(&mut share, 300, &mut calls, [0; 2], 0);
        assert_eq!(share.bound(RTT, &calls[0]), None, "it carries more");
    }

    #[test]
    fn room_unused_by_small_calls_serves_large_ones() {
        let mut share = Share::default();
        let mut calls = [Counted::default(); 2];
        two(&mut share, 0, &mut calls, [500_000; 2], 180_000);
        for round in 1..4 {
            two(
                &mut share,
                round * 100,
                &mut calls,
                [50_000, 500_000],
                100_000,
            );
        }
        assert_eq!(share.bound(RTT, &calls[0]), Some(500_000));
        // Of a million bytes per round trip, both calls had 550,000.
        assert_eq!(share.bound(RTT, &calls[1]), Some(909_090));
    }
}
