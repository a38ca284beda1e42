//! State of one call: both halves, pending acknowledgements and timers.
//!
//! A call uses the slot of its channel, which outlives it. Queues keep their memory and the timer
//! stays armed, so consecutive short calls pay for neither.

use crate::congestion::Congestion;
use crate::packet::AckReason;
use crate::receive::ReceiveWindow;
use crate::send::SendWindow;
use crate::share::Counted;
use crate::time::Time;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallState {
    /// Server: not yet given to the driver (packets, authentication or a proof of the address are
    /// missing).
    Waiting,
    /// The driver works on it.
    Active,
    /// Server: the driver is done, the reply is not fully acknowledged.
    Hold,
    /// Finished; kept to answer repeated packets until the channel's next call.
    Dally,
}

/// Pending acknowledgements.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PendingAck {
    /// ACK to send with the next transmission: reason and serial.
    pub(crate) now: Option<(AckReason, u32)>,
    /// Number of copies to send: a stock sender counts the ACKs that report a hole.
    pub(crate) repeat: u8,
    /// Latest time to send an ACK.
    pub(crate) deadline: Option<Time>,
    /// Packets received in order since the last ACK.
    pub(crate) unacked: u32,
    /// Packets read since the last ACK.
    pub(crate) consumed: u32,
    /// Serial of a ping to answer.
    pub(crate) pong: Option<u32>,
}

impl PendingAck {
    /// Requests an ACK at once. If several are requested, the most informative reason wins.
    pub(crate) fn request(&mut self, reason: AckReason, serial: u32) {
        let rank = |reason: AckReason| match reason {
            AckReason::REQUESTED => 5,
            AckReason::OUT_OF_SEQUENCE => 4,
            AckReason::DUPLICATE => 3,
            AckReason::EXCEEDS_WINDOW => 2,
            AckReason::IDLE => 1,
            _ => 0,
        };
        if self
            .now
            .is_none_or(|(current, _)| rank(current) <= rank(reason))
        {
            self.now = Some((reason, serial));
        }
        if reason == AckReason::OUT_OF_SEQUENCE {
            self.repeat = self.repeat.saturating_add(1).min(3);
        }
    }

    /// Requests an ACK at `deadline` at the latest.
    pub(crate) fn request_by(&mut self, deadline: Time) {
        self.deadline = Some(
            self.deadline
                .map_or(deadline, |earlier| earlier.min(deadline)),
        );
    }

    /// Records that the reply was sent, which acknowledges implicitly. Explicitly requested and
    /// duplicate ACKs stay pending.
    pub(crate) fn implied(&mut self) {
        self.deadline = None;
        self.unacked = 0;
        self.consumed = 0;
        if !matches!(
            self.now,
            Some((AckReason::REQUESTED | AckReason::DUPLICATE, _))
        ) {
            self.now = None;
        }
    }

    /// Records that an ACK was sent.
    pub(crate) fn sent(&mut self) {
        self.now = None;
        self.repeat = 0;
        self.deadline = None;
        self.unacked = 0;
        self.consumed = 0;
    }
}

/// A ping that we sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ping {
    pub(crate) serial: u32,
    pub(crate) sent_at: Time,
}

#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) connection: u32,
    pub(crate) channel: u8,
    pub(crate) server: bool,
    pub(crate) number: u32,
    /// Generation of the id that the driver holds or held last.
    pub(crate) generation: u32,
    /// Whether the driver holds the id.
    pub(crate) attached: bool,
    pub(crate) state: CallState,
    /// Whether it counts as a server call in progress.
    pub(crate) admitted: bool,
    /// Whether its connection's address is unverified, so that it counts with those.
    pub(crate) unverified: bool,
    /// Whether the driver got it before its address was verified; the number of such calls is
    /// limited.
    pub(crate) early: bool,
    /// Code with which the call failed; 0: none.
    pub(crate) code: i32,
    /// Code with which we aborted it, repeated if the peer continues; 0: none.
    pub(crate) abort: i32,
    /// Time of the last ABORT sent.
    pub(crate) aborted_at: Time,
    pub(crate) receive: ReceiveWindow,
    pub(crate) send: SendWindow,
    pub(crate) congestion: Option<Box<Congestion>>,
    /// Its counters in the peer's shared estimate of the path.
    pub(crate) counted: Counted,
    /// Whether received data is dropped (server: reply begun; or the driver is gone).
    pub(crate) deaf: bool,
    /// Client: the reply began, nothing more can be written. Server: it wrote data.
    pub(crate) turned: bool,
    pub(crate) ack: PendingAck,
    pub(crate) started_at: Time,
    pub(crate) received_at: Time,
    /// Serial of the last ACK packet that counted.
    pub(crate) ack_serial: u32,
    /// Time of the last ping.
    pub(crate) pinged_at: Time,
    /// Unanswered pings in a row; below, those during which the peer was otherwise heard.
    pub(crate) pings_missed: u8,
    pub(crate) pings_lost: u8,
    pub(crate) sent_at: Time,
    pub(crate) progress_at: Time,
    /// Time when the peer last accepted written data, or when data first became available to it.
    pub(crate) taken_at: Time,
    /// Time of the last data sent or progress acknowledged: start of the retransmission timeout.
    pub(crate) resend_base: Time,
    pub(crate) backoff: u8,
    pub(crate) tail_probed: bool,
    /// Whether any packet was sent more than once.
    pub(crate) resent: bool,
    pub(crate) rack_at: Option<Time>,
    pub(crate) pace_at: Option<Time>,
    pub(crate) reach_at: Option<Time>,
    pub(crate) ping_wanted: bool,
    /// Size of the padded ping to send.
    pub(crate) probe_wanted: Option<u16>,
    pub(crate) ping: Option<Ping>,
    pub(crate) want_read: bool,
    pub(crate) want_write: bool,
    /// Whether packets that are too large for the path may be the reason for missing
    /// acknowledgements.
    pub(crate) blackholed: bool,
    /// Time of its earliest entry in the timer queue.
    pub(crate) armed: Time,
    /// Whether it is in the queue of calls with data to send.
    pub(crate) queued: bool,
}

impl Call {
    pub(crate) fn new(connection: u32, channel: u8, server: bool) -> Self {
        Self {
            connection,
            channel,
            server,
            number: 0,
            generation: 0,
            attached: false,
            state: CallState::Dally,
            admitted: false,
            unverified: false,
            early: false,
            code: 0,
            abort: 0,
            aborted_at: Time::ZERO,
            receive: ReceiveWindow::default(),
            send: SendWindow::default(),
            congestion: None,
            counted: Counted::default(),
            deaf: false,
            turned: false,
            ack: PendingAck::default(),
            started_at: Time::ZERO,
            received_at: Time::ZERO,
            ack_serial: 0,
            pinged_at: Time::ZERO,
            pings_missed: 0,
            pings_lost: 0,
            sent_at: Time::ZERO,
            progress_at: Time::ZERO,
            taken_at: Time::ZERO,
            resend_base: Time::ZERO,
            backoff: 0,
            tail_probed: false,
            resent: false,
            rack_at: None,
            pace_at: None,
            reach_at: None,
            ping_wanted: false,
            probe_wanted: None,
            ping: None,
            want_read: false,
            want_write: false,
            blackholed: false,
            armed: Time::NEVER,
            queued: false,
        }
    }

    /// Resets the slot for the next call of the channel.
    pub(crate) fn begin(&mut self, now: Time, number: u32, receive: (u32, u32), send_window: u32) {
        self.number = number;
        self.code = 0;
        self.abort = 0;
        let (window, offered) = receive;
        self.receive.reset(window, offered);
        self.send.reset(send_window);
        self.congestion = None;
        self.counted = Counted::default();
        self.deaf = false;
        self.turned = false;
        self.ack = PendingAck::default();
        self.started_at = now;
        self.received_at = now;
        self.sent_at = now;
        self.progress_at = now;
        self.taken_at = now;
        self.resend_base = now;
        self.backoff = 0;
        self.tail_probed = false;
        self.rack_at = None;
        self.pace_at = None;
        self.reach_at = None;
        self.ping_wanted = false;
        self.probe_wanted = None;
        self.ping = None;
        self.want_read = false;
        self.want_write = false;
        self.blackholed = false;
    }

    /// Whether the peer is expected to answer.
    pub(crate) const fn expects_answer(&self) -> bool {
        !matches!(self.state, CallState::Dally)
    }

    /// Whether the peer knows of the call; only then can it answer.
    pub(crate) const fn known_to_peer(&self) -> bool {
        self.server || self.send.packets() > 0
    }

    /// Whether the last ping is unanswered.
    pub(crate) fn is_missed(&self) -> bool {
        self.pinged_at > self.received_at
    }

    /// Cancels retransmission and pacing.
    pub(crate) fn stops_sending(&mut self) {
        self.rack_at = None;
        self.pace_at = None;
        self.backoff = 0;
        self.tail_probed = false;
    }
}
