//! Driver of one port on one shard: connects sockets, the protocol core, and handlers and callers.
//!
//! 1. All work happens in turns of one task ([`Driver::turn`]). A turn receives the available
//!    datagrams (bounded), passes them to the protocol, runs the calls that arrived, and sends all
//!    output. The calls of a batch thus share system calls, and a reply carries the acknowledgement
//!    of its request.
//! 2. A handler is polled once within the turn. Most answer from memory and finish; a pending one
//!    becomes a task of its own.
//! 3. Tasks and callers on this thread enter the protocol directly, between turns, and request a
//!    turn ([`Driver::request_turn`]). That turn comes after all tasks that are ready now, so their
//!    packets leave together.
//! 4. After a long turn the sockets are polled before the next turn, even if a turn was requested.
//!    Tasks that request turns as fast as they end would otherwise keep the event loop from polling
//!    for tens of milliseconds.
//! 5. The state is borrowed for single steps only, never while a handler is polled or a waker is
//!    called, because both may re-enter the driver.

mod call_slots;
mod events;
mod incoming;
mod outgoing;
mod receive;
mod transmit;

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::future::{Future, poll_fn};
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use cellar_rx::packet::{BasicStatistics, DebugQuery};
use cellar_rx::{
    Config, ConnectionId, DebugMode, Endpoint, Limits, ServiceConfig, Shared, Statistics, Time,
    code,
};
use hashbrown::HashMap;
use tokio::task::AbortHandle;
use tokio::time::Sleep;

use crate::CallError;
use crate::admission::Admission;
use crate::clock::Clock;
use crate::debug::DebugBudget;
use crate::limits::{
    CALLS_MAX, CALLS_PER_HOST_MAX, CALLS_PER_TURN_MAX, CONNECTIONS_MAX, IDLE_CONNECTIONS_MAX,
    LONG_TURN, PEERS_MAX, SEND_BUFFERS_BYTES, TURN_TIME_MAX, UNVERIFIED_BYTES_MAX,
    UNVERIFIED_CALLS_MAX, UNVERIFIED_CONNECTIONS_MAX, UNVERIFIED_PER_ADDRESS_MAX,
    WRITE_CHUNK_BYTES,
};
use crate::memory;
use crate::outgoing::CallShared;
use crate::packet_log::PacketLog;
use crate::port::{Port, PortInner, SharedShard};
use crate::rxstats::RxStats;
use crate::service::{Service, ServiceOptions};
use crate::shard;
use crate::socket::{ReceiveBuffers, ShardSocket, SocketFigures};
use crate::statistics::{PackageCounters, ShardCounters};

use call_slots::{CallSlot, CallUser};
use incoming::QueuedCall;
pub(crate) use incoming::RxCall;
use outgoing::Pool;
use transmit::{Outbox, Run};

/// Arguments of a driver, sent to the shard's thread.
pub(crate) struct DriverSetup {
    pub(crate) port: Port,
    /// Number of this shard among those of the port; below, their count.
    pub(crate) number: usize,
    pub(crate) count: usize,
    pub(crate) sockets: Vec<UdpSocket>,
    pub(crate) clock: Clock,
    pub(crate) epoch: u32,
    pub(crate) seed: u64,
    pub(crate) shared: Arc<Shared>,
    pub(crate) dead_time: Duration,
    pub(crate) version: String,
    pub(crate) probe_mtu: bool,
    pub(crate) path_share: bool,
    pub(crate) open_statistics: bool,
    pub(crate) waiting_calls_max: usize,
    pub(crate) running_calls_max: usize,
    pub(crate) send_buffer_bytes: usize,
    pub(crate) services: Vec<Arc<dyn Service>>,
    pub(crate) log_packets: bool,
}

/// Driver of one port on one shard; see the head of this module.
pub(crate) struct Driver {
    port: Port,
    clock: Clock,
    version: String,
    counters: Arc<ShardCounters>,
    /// Empty once the port is closed, since handlers that still run must not keep its address
    /// bound.
    sockets: RefCell<Rc<[ShardSocket]>>,
    state: RefCell<State>,
    /// Start of the current turn, or of the last one.
    turn_time: Cell<Time>,
    in_turn: Cell<bool>,
    /// Whether a requested turn has not begun.
    kicked: Cell<bool>,
    /// Whether the last turn was long, so that the event loop must poll all sockets before the
    /// next.
    resting: Cell<bool>,
    closed: Cell<bool>,
    waker: RefCell<Option<Waker>>,
    debug_budget: DebugBudget,
    /// Tasks that hold the driver and wait for its sockets; they end with it.
    listeners: RefCell<Vec<AbortHandle>>,
    /// Number of this shard among those of the port; below, their count.
    number: usize,
    shards: usize,
    running_max: usize,
    /// Wakers to call after the current borrow of the state ends.
    due_wakers: RefCell<Vec<Waker>>,
    /// The log of received packets, if the port has one.
    log: Option<RefCell<PacketLog>>,
}

/// State that is borrowed for single steps.
struct State {
    endpoint: Endpoint,
    admission: Admission<QueuedCall>,
    services: Vec<Rc<ServiceEntry>>,
    /// Users of calls, by call slot of the protocol.
    calls: Vec<CallSlot>,
    /// Data that services attached to connections, by connection slot.
    connection_data: Vec<Option<(ConnectionId, Arc<dyn Any + Send + Sync>)>>,
    /// Sets of client connections, by the key of their [`crate::port::RxConnection`].
    pools: HashMap<u64, Pool>,
    /// The set of each client connection.
    pool_of: HashMap<ConnectionId, u64>,
    /// Outgoing calls that begin when all events are handled.
    to_begin: VecDeque<Arc<CallShared>>,
    /// Outgoing calls with a deadline.
    deadlines: BTreeMap<(Time, u64), Arc<CallShared>>,
    next_deadline: u64,
}

/// A service on this port.
pub(crate) struct ServiceEntry {
    id: u16,
    service: Arc<dyn Service>,
    options: ServiceOptions,
    counters: Arc<PackageCounters>,
}

/// Buffers that the ports of one shard use in turn.
struct Scratch {
    receive: ReceiveBuffers,
    outbox: Outbox,
}

thread_local! {
    static SCRATCH: RefCell<Option<Scratch>> = const { RefCell::new(None) };
}

impl Driver {
    /// Starts the driver's task. Must be called on the shard's thread.
    pub(crate) fn start(setup: DriverSetup) -> io::Result<Rc<Self>> {
        let sockets: io::Result<Vec<_>> = setup.sockets.into_iter().map(ShardSocket::new).collect();
        let (cid_shards, cid_shard) = receive::cid_choice(setup.number, setup.count, setup.seed);
        let config = Config {
            epoch: setup.epoch,
            serial_base: Some(rand::random),
            cid_shard,
            cid_shards,
            unix_start_micros: setup.clock.unix_start_micros(),
            probe_mtu: setup.probe_mtu,
            path_share: setup.path_share,
            dead_time: setup.dead_time,
            version: setup.version.clone(),
            debug: DebugMode::Event,
            limits: Limits {
                send_buffer: setup.send_buffer_bytes.max(2 * WRITE_CHUNK_BYTES),
                ..protocol_limits()
            },
            shared: Some(setup.shared),
            ..Config::default()
        };
        let log = setup.log_packets.then(PacketLog::new);
        let log = log.and_then(|log| {
            log.inspect_err(|cause| tracing::warn!(%cause, "received packets are not logged"))
                .ok()
        });
        let counters = Arc::new(ShardCounters::default());
        setup.port.0.statistics.add_shard(counters.clone());
        let driver = Rc::new(Self {
            port: setup.port,
            clock: setup.clock,
            version: setup.version,
            counters,
            sockets: RefCell::new(sockets?.into()),
            state: RefCell::new(State {
                endpoint: Endpoint::new(config, setup.seed),
                admission: Admission::new(setup.waiting_calls_max, setup.running_calls_max),
                services: Vec::new(),
                calls: Vec::new(),
                connection_data: Vec::new(),
                pools: HashMap::new(),
                pool_of: HashMap::new(),
                to_begin: VecDeque::new(),
                deadlines: BTreeMap::new(),
                next_deadline: 0,
            }),
            turn_time: Cell::new(setup.clock.now()),
            in_turn: Cell::new(false),
            kicked: Cell::new(false),
            resting: Cell::new(false),
            closed: Cell::new(false),
            waker: RefCell::new(None),
            debug_budget: DebugBudget::default(),
            listeners: RefCell::new(Vec::new()),
            number: setup.number,
            shards: setup.count,
            running_max: setup.running_calls_max,
            due_wakers: RefCell::new(Vec::new()),
            log: log.map(RefCell::new),
        });
        driver.add_service(Arc::new(RxStats::new(driver.clock, setup.open_statistics)));
        for service in setup.services {
            driver.add_service(service);
        }
        // This task polls handlers, which must not exhaust its budget.
        shard::spawn(tokio::task::unconstrained(driver.clone().run()));
        let count = driver.sockets().len();
        for socket in 0..count {
            let task = shard::spawn(driver.clone().process_icmp_errors(socket));
            driver.listeners.borrow_mut().push(task.abort_handle());
        }
        Ok(driver)
    }

    /// Adds a service.
    pub(crate) fn add_service(&self, service: Arc<dyn Service>) {
        let package = service.package();
        let options = service.options();
        let counters = Arc::new(PackageCounters::new(package));
        self.port.0.statistics.add_package(counters.clone());
        let security = if options.security.is_empty() {
            self.port.0.security.clone()
        } else {
            options.security.clone()
        };
        let mut state = self.state.borrow_mut();
        state.endpoint.add_service(ServiceConfig {
            id: package.service_id,
            security,
            reach_check: options.reach_check,
            idle_dead_time: None,
        });
        let entry = Rc::new(ServiceEntry {
            id: package.service_id,
            service,
            options,
            counters,
        });
        state.services.retain(|known| known.id != entry.id);
        state.services.push(entry);
    }

    /// Sets counters of every service to 0; see [`PackageCounters::clear`].
    pub(crate) fn clear_statistics(&self, flags: u32) {
        for entry in &self.state.borrow().services {
            entry.counters.clear(flags);
        }
    }

    /// Closes the port on this shard: outgoing calls fail, incoming calls are dropped with their
    /// tasks.
    pub(crate) fn close(&self) {
        self.closed.set(true);
        for listener in self.listeners.borrow_mut().drain(..) {
            listener.abort();
        }
        let outgoing = {
            let now = self.now();
            let mut state = self.state.borrow_mut();
            // Sends aborts for calls in progress and last acknowledgements for finished ones, so
            // that servers need not retransmit their replies.
            let connections: Vec<_> = state.pool_of.drain().map(|(id, _)| id).collect();
            for connection in connections {
                state.endpoint.close(now, connection);
            }
            // An abort makes callers retry instead of waiting for their dead time.
            for call in state.incoming_calls() {
                state.endpoint.abort(now, call, code::RESTARTING);
                state.fail_incoming(call, code::RESTARTING);
            }
            state.take_outgoing()
        };
        for call in outgoing {
            call.fail(CallError::Closed);
        }
        SCRATCH.with_borrow_mut(|scratch| {
            let outbox = &mut scratch.get_or_insert_with(Scratch::new).outbox;
            let mut context = Context::from_waker(Waker::noop());
            while self.transmit(&mut context, outbox, &mut VecDeque::new()) {}
        });
        self.sockets.replace(Rc::new([]));
        self.request_turn();
    }

    fn sockets(&self) -> Rc<[ShardSocket]> {
        self.sockets.borrow().clone()
    }

    /// Requests a turn, after the tasks that are ready now.
    pub(crate) fn request_turn(&self) {
        if self.in_turn.get() || self.kicked.replace(true) || self.resting.get() {
            return;
        }
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }

    pub(crate) fn debug_budget(&self) -> &DebugBudget {
        &self.debug_budget
    }

    /// Time of the runtime's clock in whole seconds.
    pub(crate) fn seconds(&self) -> u64 {
        self.now().as_micros() / 1_000_000
    }

    pub(crate) fn port_inner(&self) -> Arc<PortInner> {
        self.port.0.clone()
    }

    pub(crate) fn version(&self) -> &str {
        &self.version
    }

    /// Most calls that all shards of the port together may run.
    pub(crate) fn running_max(&self) -> u64 {
        (self.running_max * self.port.0.shards.len()) as u64
    }

    pub(crate) fn with_endpoint<R>(&self, look: impl FnOnce(&Endpoint) -> R) -> R {
        look(&self.state.borrow().endpoint)
    }

    pub(crate) fn endpoint_basic(&self) -> BasicStatistics {
        self.with_endpoint(Endpoint::basic_statistics)
    }

    pub(crate) fn endpoint_statistics(&self) -> Statistics {
        self.with_endpoint(Endpoint::statistics)
    }

    pub(crate) fn socket_figures(&self) -> SocketFigures {
        let mut sum = SocketFigures::default();
        for socket in self.sockets().iter() {
            sum.add(&socket.figures());
        }
        sum
    }

    pub(crate) fn share(&self) -> io::Result<SharedShard> {
        let sockets: io::Result<_> = self.sockets().iter().map(ShardSocket::duplicate).collect();
        let log = self.log.as_ref().map(|log| log.borrow().duplicate());
        Ok(SharedShard {
            sockets: sockets?,
            log: log.transpose()?,
        })
    }

    /// Fails outgoing calls begun before `since`, whose answers would go to an address that is no
    /// longer ours.
    pub(crate) fn handle_new_address(&self, since: std::time::Instant) {
        let (now, since) = (self.now(), self.clock.time(since));
        let endpoint = &mut self.state.borrow_mut().endpoint;
        endpoint.handle_new_address(now, since);
        self.request_turn();
    }

    /// Sends a datagram that keeps address translators open and gets no answer.
    pub(crate) fn keep_mapping(&self, to: SocketAddr) {
        self.state.borrow_mut().endpoint.keep_mapping(to);
        self.request_turn();
    }

    /// Sends the answer to a query of `rxdebug`.
    pub(crate) fn answer_debug(
        &self,
        to: SocketAddr,
        local: Option<IpAddr>,
        query: &DebugQuery,
        payload: Vec<u8>,
    ) {
        self.state
            .borrow_mut()
            .endpoint
            .answer_debug(to, local, query, &payload);
        self.request_turn();
    }

    /// Current time: within a turn that of its start, otherwise the clock's.
    fn now(&self) -> Time {
        if self.in_turn.get() {
            self.turn_time.get()
        } else {
            self.clock.now()
        }
    }

    async fn run(self: Rc<Self>) {
        let sleep = tokio::time::sleep_until(self.clock.instant(self.clock.now()).into());
        tokio::pin!(sleep);
        let mut armed = Time::NEVER;
        let mut unsent = VecDeque::new();
        poll_fn(|cx| self.turn(cx, sleep.as_mut(), &mut armed, &mut unsent)).await;
    }

    fn turn(
        self: &Rc<Self>,
        cx: &mut Context<'_>,
        mut sleep: Pin<&mut Sleep>,
        armed: &mut Time,
        unsent: &mut VecDeque<Run>,
    ) -> Poll<()> {
        if self.closed.get() {
            return Poll::Ready(());
        }
        self.remember_waker(cx);
        self.kicked.set(false);
        self.resting.set(false);
        self.turn_time.set(self.clock.now());
        self.in_turn.set(true);
        let more_received = SCRATCH.with_borrow_mut(|scratch| {
            let scratch = scratch.get_or_insert_with(Scratch::new);
            self.receive(cx, &mut scratch.receive)
        });
        self.handle_due();
        self.handle_events();
        self.wake_due();
        let more_calls = self.run_calls();
        // Running calls changes the protocol's state, which may have created events.
        self.handle_events();
        self.in_turn.set(false);
        let more_to_send = SCRATCH.with_borrow_mut(|scratch| {
            let scratch = scratch.get_or_insert_with(Scratch::new);
            self.transmit(cx, &mut scratch.outbox, unsent)
        });
        // Sending may report unreachable destinations.
        let more_events = self.handle_events();
        self.publish();
        self.wake_due();
        let long = self.clock.now() >= self.turn_time.get() + LONG_TURN;
        self.resting.set(long);
        let more = more_received || more_calls || more_events || more_to_send;
        if more || long || self.kicked.get() {
            yield_to_event_loop(cx);
        }
        self.arm(cx, sleep.as_mut(), armed);
        Poll::Pending
    }

    fn remember_waker(&self, cx: &Context<'_>) {
        let mut waker = self.waker.borrow_mut();
        match &*waker {
            Some(known) if known.will_wake(cx.waker()) => {}
            _ => *waker = Some(cx.waker().clone()),
        }
    }

    /// Handles expired timers of the protocol, and outgoing calls that exceeded their deadline.
    fn handle_due(&self) {
        let now = self.turn_time.get();
        let mut late = Vec::new();
        {
            let mut state = self.state.borrow_mut();
            if state.endpoint.poll_timeout().is_some_and(|due| due <= now) {
                state.endpoint.handle_timeout(now);
                if state.endpoint.take_freed() {
                    memory::give_back();
                }
            }
            while let Some(entry) = state.deadlines.first_entry() {
                if entry.key().0 > now {
                    break;
                }
                late.push(entry.remove());
            }
        }
        for call in late {
            self.expire(&call);
        }
    }

    /// Runs calls that have arrived, for a limited time. Returns whether more could run now.
    fn run_calls(self: &Rc<Self>) -> bool {
        let mut now = self.clock.now();
        let until = now + TURN_TIME_MAX;
        for _ in 0..CALLS_PER_TURN_MAX {
            let Some(call) = self.state.borrow_mut().admission.next() else {
                return false;
            };
            let (client, began) = (call.client(), now);
            self.run_call(call, began);
            now = self.clock.now();
            let took = now.as_micros().saturating_sub(began.as_micros());
            self.state.borrow_mut().admission.charge(client, took);
            if now >= until {
                break;
            }
        }
        self.state.borrow().admission.has_next()
    }

    fn wake_due(&self) {
        // Waking only queues tasks: none runs before the turn ends.
        let wakers = std::mem::take(&mut *self.due_wakers.borrow_mut());
        for waker in wakers {
            waker.wake();
        }
    }

    fn publish(&self) {
        let state = self.state.borrow();
        self.counters
            .calls_waiting
            .set(state.admission.waiting() as u64);
        self.counters
            .calls_running
            .set(state.admission.running() as u64);
    }

    /// Arms the timer for the next deadline. A timer that fires too early is kept. That costs an
    /// extra turn now and then, while setting it again would cost something in each turn.
    fn arm(&self, cx: &mut Context<'_>, mut sleep: Pin<&mut Sleep>, armed: &mut Time) {
        let due = {
            let mut state = self.state.borrow_mut();
            let call = state.deadlines.first_key_value().map(|((due, _), _)| *due);
            match (state.endpoint.poll_timeout(), call) {
                (Some(a), Some(b)) => a.min(b),
                (a, b) => match a.or(b) {
                    Some(due) => due,
                    None => return,
                },
            }
        };
        let now = self.clock.now();
        if due < *armed || *armed <= now {
            sleep.as_mut().reset(self.clock.instant(due).into());
            *armed = due;
        }
        if sleep.as_mut().poll(cx).is_ready() {
            *armed = Time::NEVER;
            cx.waker().wake_by_ref();
        }
    }
}

/// Bounds of the memory that peers can make the protocol use.
pub(crate) fn protocol_limits() -> Limits {
    Limits {
        connections: CONNECTIONS_MAX,
        idle_connections: IDLE_CONNECTIONS_MAX,
        peers: PEERS_MAX,
        calls: CALLS_MAX,
        unverified_connections: UNVERIFIED_CONNECTIONS_MAX,
        unverified_per_host: UNVERIFIED_PER_ADDRESS_MAX,
        unverified_calls: UNVERIFIED_CALLS_MAX,
        unverified_bytes: UNVERIFIED_BYTES_MAX,
        send_buffers: SEND_BUFFERS_BYTES,
        calls_per_host: CALLS_PER_HOST_MAX,
        ..Limits::default()
    }
}

/// Schedules another poll of the task after the event loop has polled all sockets and timers. A
/// port with endless work must not starve the other ports of the shard.
fn yield_to_event_loop(cx: &mut Context<'_>) {
    let yielding = pin!(tokio::task::yield_now());
    // Always pending: it has left the waker with the event loop.
    let _pending = yielding.poll(cx);
}

impl Scratch {
    fn new() -> Self {
        Self {
            receive: ReceiveBuffers::new(),
            outbox: Outbox::new(),
        }
    }
}
