//! FUSE over io_uring (Linux 6.14): a request and its answer change hands on the processor of the program that asks.
//!
//! Through `/dev/fuse` whoever waits longest reads the next request, on whatever processor that is, which has to be
//! woken from another; here each processor has a queue and a thread that stays there. A queue is an io_uring of
//! commands to the device, one for each [entry](memory): a command ends when there is a request, and the next one has
//! its answer.
//!
//! 1. *An entry is held from a request to its answer*, so they bound how many requests of one processor may wait for
//!    servers at a time: [`entries`] says how many. What does not find one waits in the kernel. Whoever waits for
//!    another program (a lock) must not have them all, as what that one asks then would not come in ([`places`]).
//! 2. *Whoever answers on the queue's own thread* leaves his answer to the next `io_uring_enter`, which there is in any
//!    case; others wake the thread, if it sleeps.
//! 3. *The device stays*: the kernel tells there most of what it forgets, and takes notices there. What it does tell here
//!    (Linux 6.18: of one file, when a directory is read) has to be answered here, though no file system does.
//! 4. *The beginning*: as soon as the kernel has granted it, it hands nothing over before every queue is there. So all
//!    that can be lacking (memory, threads, descriptors) is taken before it is asked for: [`Rings::queues`].
//! 5. *The end*: commands that the kernel holds end with ENOTCONN, and those of requests that are answered later, too.
//!    What else goes wrong would leave programs waiting for ever: then the whole connection is ended (`failed`).

use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{JoinHandle, ThreadId};

use fuser::{Dispatcher, ReplyPath, Worker};
use io_uring::{IoUring, cqueue, squeue};
use parking_lot::Mutex;
use rustix::event::EventfdFlags;
use rustix::io::Errno;
use rustix::thread::CpuSet;

use memory::{Memory, OUT_HEADER};
use places::Places;
pub(crate) use places::place;

mod memory;
mod places;

type Ring = IoUring<squeue::Entry128, cqueue::Entry>;

/// Processors that there may be, also later: the kernel wants a queue for each.
const POSSIBLE: &str = "/sys/devices/system/cpu/possible";
/// Those that there are.
const ONLINE: &str = "/sys/devices/system/cpu/online";
/// Whether the kernel offers it to whoever mounts.
const OFFERED: &str = "/sys/module/fuse/parameters/enable_uring";
/// Entries of all queues, and bounds of one's.
const ENTRIES: usize = 8_192;
const ENTRIES_MIN: usize = 32;
const ENTRIES_MAX: usize = 256;
/// Bytes of requests and replies that all queues keep when they need them no more, and the least of one.
const KEPT: usize = 256 << 20;
const KEPT_MIN: usize = 8 << 20;
/// What an entry may keep in any case.
const SMALL: usize = 64 << 10;
/// The completion that is no entry's.
const WOKEN: u64 = u64::MAX;

/// Whether FUSE over io_uring is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rings {
    /// Where the kernel offers it.
    #[default]
    Offered,
    /// Or there is no mount.
    Required,
    /// Not.
    Never,
}

impl Rings {
    /// The queues, if it is to be asked for. `payload`: bytes of a request or a reply at most, without headers.
    ///
    /// # Errors
    /// It is required, and cannot be used.
    pub(crate) fn queues<F: fuser::Filesystem>(
        self,
        payload: usize,
    ) -> io::Result<Option<Queues<F>>> {
        if self == Self::Never {
            return Ok(None);
        }
        let offered = match std::fs::read_to_string(OFFERED) {
            Ok(text) if text.trim() == "Y" => Ok(()),
            Ok(_) => Err(io::Error::other(format!(
                "it is switched off: echo Y > {OFFERED}"
            ))),
            Err(_) => Err(io::Error::other("it needs Linux 6.14")),
        };
        let is_offered = offered.is_ok();
        match offered.and_then(|()| Queues::new(payload)) {
            Ok(queues) => Ok(Some(queues)),
            Err(cause) if self == Self::Required => {
                let text = format!("FUSE over io_uring cannot be used: {cause}");
                Err(io::Error::new(io::ErrorKind::Unsupported, text))
            }
            Err(cause) if is_offered => {
                tracing::warn!(%cause, "requests do not come over io_uring, though the kernel offers it");
                Ok(None)
            }
            Err(cause) => {
                tracing::debug!(%cause, "without FUSE over io_uring");
                Ok(None)
            }
        }
    }
}

/// The processors of one of the kernel's lists.
fn processors(list: &str) -> io::Result<Vec<u16>> {
    parse(&std::fs::read_to_string(list)?)
        .filter(|numbers| !numbers.is_empty())
        .ok_or_else(|| io::Error::other(format!("{list} is not understood")))
}

/// A list like `0-3,8`.
fn parse(list: &str) -> Option<Vec<u16>> {
    let mut numbers = Vec::new();
    for range in list.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (first.parse::<u16>().ok()?, last.parse::<u16>().ok()?);
        if last < first {
            return None;
        }
        numbers.extend(first..=last);
    }
    Some(numbers)
}

/// Of the queue of one of so many processors.
fn entries(online: usize) -> usize {
    (ENTRIES / online.max(1)).clamp(ENTRIES_MIN, ENTRIES_MAX)
}

fn ring(entries: usize) -> io::Result<Ring> {
    let mut builder = Ring::builder();
    // The kernel then writes to the memory of a queue only while its thread waits for that.
    builder.setup_single_issuer().setup_defer_taskrun();
    builder.build(2 * entries as u32)
}

/// Binds this thread to a processor. If that is off, or not for us, it runs elsewhere.
fn stay_on(processor: u16) {
    let mut here = CpuSet::new();
    if usize::from(processor) < CpuSet::MAX_CPU {
        here.set(usize::from(processor));
        if let Err(cause) = rustix::thread::sched_setaffinity(None, &here) {
            tracing::debug!(%cause, processor, "a queue of requests is not bound to its processor");
        }
    }
}

/// Ends the connection, as nobody would answer what comes to a queue.
pub(crate) type Failed = Arc<dyn Fn(io::Error) + Send + Sync>;

/// What a queue's thread waits for.
struct Begin<F: fuser::Filesystem> {
    device: Arc<OwnedFd>,
    dispatcher: Dispatcher<F>,
    failed: Failed,
}

/// A queue's thread that waits for a mount.
struct Ready<F: fuser::Filesystem> {
    name: String,
    shared: Arc<Shared>,
    thread: JoinHandle<()>,
    begin: SyncSender<Begin<F>>,
}

/// And what tells when it has all that it needs.
type Started<F> = (Ready<F>, Receiver<io::Result<()>>);

/// The queues of a mount that is to be made, of each processor that there may be. Those that are given up end by themselves.
pub(crate) struct Queues<F: fuser::Filesystem>(Vec<Ready<F>>);

impl<F: fuser::Filesystem> Queues<F> {
    fn new(payload: usize) -> io::Result<Self> {
        let online = processors(ONLINE)?;
        let queues = processors(POSSIBLE)?.len() as u16;
        let start = |queue: u16| {
            // One that comes later has a small one.
            let entries = match online.contains(&queue) {
                true => entries(online.len()),
                false => ENTRIES_MIN,
            };
            let kept = (KEPT / online.len()).max(KEPT_MIN);
            Ready::new(queue, Arc::new(Shared::new(entries, payload)?), kept)
        };
        let mut started = Vec::new();
        let built = Self::build((0..queues).map(start), &mut started);
        let ready = started.into_iter().map(|(ready, _)| ready);
        if let Err(cause) = built {
            // What they have got is needed without them, too.
            ready.for_each(Ready::give_up);
            return Err(cause);
        }
        Ok(Self(ready.collect()))
    }

    /// Starts all, and waits until each has what it needs.
    fn build(
        threads: impl Iterator<Item = io::Result<Started<F>>>,
        started: &mut Vec<Started<F>>,
    ) -> io::Result<()> {
        for thread in threads {
            started.push(thread?);
        }
        let ended = |_| io::Error::other("a queue's thread has ended");
        started
            .iter()
            .try_for_each(|(_, built)| built.recv().map_err(ended)?)
    }

    /// What serves a session, for which io_uring has been granted.
    pub(crate) fn workers(self, device: &Arc<OwnedFd>, failed: &Failed) -> Vec<Worker<F>> {
        let worker = |ready: Ready<F>| {
            let (device, failed) = (device.clone(), failed.clone());
            let (begin, shared, thread) = (ready.begin, ready.shared, ready.thread);
            Worker {
                name: ready.name,
                start: Box::new(move |dispatcher| {
                    let begun = begin.send(Begin {
                        device,
                        dispatcher,
                        failed,
                    });
                    if let Err(unsent) = begun {
                        (unsent.0.failed)(io::Error::other("a queue's thread has ended"));
                    }
                }),
                stop: Box::new(move || {
                    shared.stop();
                    // Its panics were caught.
                    let _ended = thread.join();
                }),
            }
        };
        self.0.into_iter().map(worker).collect()
    }
}

impl<F: fuser::Filesystem> Ready<F> {
    /// Starts a queue's thread, which tells when it has its ring.
    fn new(queue: u16, shared: Arc<Shared>, kept: usize) -> io::Result<Started<F>> {
        let name = format!("fuse-ring-{queue}");
        let (begin, begun) = sync_channel::<Begin<F>>(1);
        let (tell, built) = sync_channel(1);
        let own = shared.clone();
        let run = move || {
            stay_on(queue);
            own.state.lock().thread = Some(std::thread::current().id());
            own.places.are_here();
            // Only the thread that makes a ring may submit to it.
            let (ring, told) = match ring(own.entries) {
                Ok(ring) => (Some(ring), Ok(())),
                Err(cause) => (None, Err(cause)),
            };
            let _gone = tell.send(told);
            let (Some(ring), Ok(begin)) = (ring, begun.recv()) else {
                return;
            };
            let Begin {
                device,
                dispatcher,
                failed,
            } = begin;
            watched(&failed, || {
                Queue::new(ring, device, queue, own, kept)?.run(&dispatcher)
            });
        };
        let thread = std::thread::Builder::new().name(name.clone()).spawn(run)?;
        let ready = Self {
            name,
            shared,
            thread,
            begin,
        };
        Ok((ready, built))
    }

    fn give_up(self) {
        drop((self.begin, self.shared));
        let _ended = self.thread.join();
    }
}

/// Whatever ends `work` but the mount's end is told.
fn watched(failed: &Failed, work: impl FnOnce() -> io::Result<()>) {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => {}
        Ok(Err(cause)) => failed(cause),
        Err(_panic) => failed(io::Error::other("a queue's thread panicked")),
    }
}

/// An answer that is on its way.
#[derive(Debug)]
struct Answer {
    entry: usize,
    header: [u8; OUT_HEADER],
    behind: usize,
    /// What is to be put behind the headers, if it is not there yet.
    staged: Vec<u8>,
}

#[derive(Debug, Default)]
struct State {
    answers: Vec<Answer>,
    /// The queue's thread waits for the kernel: whoever answers has to wake it.
    sleeps: bool,
    stops: bool,
    thread: Option<ThreadId>,
}

/// What a queue's thread shares with whoever answers.
#[derive(Debug)]
struct Shared {
    memory: Memory,
    entries: usize,
    places: Arc<Places>,
    wake: OwnedFd,
    state: Mutex<State>,
}

impl Shared {
    fn new(entries: usize, payload: usize) -> io::Result<Self> {
        Ok(Self {
            memory: Memory::new(entries, payload)?,
            entries,
            places: Arc::new(Places::new(entries / 2)),
            wake: rustix::event::eventfd(0, EventfdFlags::CLOEXEC)?,
            state: Mutex::default(),
        })
    }

    fn answer(&self, answer: Answer) {
        let wakes = {
            let mut state = self.state.lock();
            state.answers.push(answer);
            let elsewhere = state.thread != Some(std::thread::current().id());
            elsewhere && std::mem::take(&mut state.sleeps)
        };
        if wakes {
            self.wake();
        }
    }

    fn stop(&self) {
        self.state.lock().stops = true;
        self.wake();
    }

    fn wake(&self) {
        if let Err(cause) =
            rustix::io::retry_on_intr(|| rustix::io::write(&self.wake, &1_u64.to_ne_bytes()))
        {
            tracing::error!(%cause, "a queue of requests cannot be woken");
        }
    }
}

/// The way back of one request.
#[derive(Debug)]
struct Path {
    shared: Arc<Shared>,
    entry: usize,
    /// Its reply may be put into the entry at once.
    is_bare: bool,
}

impl ReplyPath for Path {
    fn send(&self, reply: &[IoSlice<'_>]) -> io::Result<()> {
        let mut header = [0; OUT_HEADER];
        let mut at = 0;
        let length: usize = reply.iter().map(|part| part.len()).sum();
        let behind = length.saturating_sub(OUT_HEADER);
        let fits = length >= OUT_HEADER && behind <= self.shared.memory.payload();
        let mut staged = Vec::new();
        for part in reply {
            let in_header = part.len().min(OUT_HEADER - at.min(OUT_HEADER));
            let (first, rest) = part.split_at(in_header);
            if in_header > 0 {
                header[at..at + in_header].copy_from_slice(first);
            }
            at += in_header;
            if !fits || rest.is_empty() {
                continue;
            }
            match self.is_bare {
                true => self.shared.memory.put(self.entry, at - OUT_HEADER, rest),
                false => staged.extend_from_slice(rest),
            }
            at += rest.len();
        }
        if !fits {
            // Whoever asked is told something.
            header[..4].copy_from_slice(&(OUT_HEADER as u32).to_ne_bytes());
            header[4..8].copy_from_slice(&(-Errno::IO.raw_os_error()).to_ne_bytes());
        }
        self.shared.answer(Answer {
            entry: self.entry,
            header,
            behind: if fits { behind } else { 0 },
            staged,
        });
        match fits {
            true => Ok(()),
            false => Err(io::Error::other(format!("a reply of {length} bytes"))),
        }
    }
}

/// A queue, of its thread.
struct Queue {
    ring: Ring,
    device: Arc<OwnedFd>,
    number: u16,
    shared: Arc<Shared>,
    /// Of each entry: whether a request of it is being answered, and how many bytes behind its headers were used.
    held: Vec<bool>,
    used: Vec<usize>,
    /// Entries that the kernel gives requests in.
    alive: usize,
    kept: usize,
    counter: Box<[u8; 8]>,
}

impl Queue {
    fn new(
        ring: Ring,
        device: Arc<OwnedFd>,
        number: u16,
        shared: Arc<Shared>,
        kept: usize,
    ) -> io::Result<Self> {
        let entries = shared.entries;
        let mut queue = Self {
            ring,
            device,
            number,
            held: vec![false; entries],
            used: vec![0; entries],
            alive: entries,
            kept,
            counter: Box::default(),
            shared,
        };
        let mut vectors = Vec::with_capacity(entries);
        for entry in 0..entries {
            let device = queue.device.as_raw_fd();
            let (command, these) = queue.shared.memory.register(device, number, entry);
            memory::push(&mut queue.ring, &command)?;
            vectors.push(these);
        }
        queue.be_woken()?;
        let taken = queue.ring.submit()?;
        if taken < entries + 1 {
            // The others point to what ends here: the ring ends, too.
            let text = format!("{taken} of {} commands were taken", entries + 1);
            return Err(io::Error::other(text));
        }
        Ok(queue)
    }

    fn be_woken(&mut self) -> io::Result<()> {
        let wait = memory::wait_for(self.shared.wake.as_raw_fd(), &mut self.counter, WOKEN);
        memory::push(&mut self.ring, &wait)
    }

    /// Until the mount has ended.
    fn run<F: fuser::Filesystem>(mut self, dispatcher: &Dispatcher<F>) -> io::Result<()> {
        let mut ended = Vec::new();
        while self.alive > 0 {
            let answers = {
                let mut state = self.shared.state.lock();
                if state.stops {
                    return Ok(());
                }
                state.sleeps = true;
                std::mem::take(&mut state.answers)
            };
            for answer in answers {
                self.give_back(&answer)?;
            }
            match self.ring.submit_and_wait(1) {
                Err(cause) if cause.kind() != io::ErrorKind::Interrupted => return Err(cause),
                _ => {}
            }
            self.shared.state.lock().sleeps = false;
            let completions = self.ring.completion();
            ended.extend(completions.map(|one| (one.user_data(), one.result())));
            for (data, result) in ended.drain(..) {
                match usize::try_from(data)
                    .ok()
                    .filter(|entry| *entry < self.held.len())
                {
                    Some(entry) if result == 0 => self.take(entry, dispatcher)?,
                    Some(_) => self.lose(result)?,
                    None => self.be_woken()?,
                }
            }
            // An answer that was not taken yet is still in its entry.
            if self.ring.submission().is_empty() {
                self.let_go();
            }
        }
        Ok(())
    }

    /// A request has come.
    fn take<F: fuser::Filesystem>(
        &mut self,
        entry: usize,
        dispatcher: &Dispatcher<F>,
    ) -> io::Result<()> {
        self.held[entry] = true;
        let request = self.shared.memory.request(entry)?;
        self.used[entry] = self.used[entry].max(request.bytes.len());
        let path = Path {
            shared: self.shared.clone(),
            entry,
            is_bare: request.is_bare,
        };
        dispatcher.dispatch(request.bytes, Arc::new(path))?;
        if let Some(header) = request.silent {
            let (behind, staged) = (0, Vec::new());
            self.shared.answer(Answer {
                entry,
                header,
                behind,
                staged,
            });
        }
        Ok(())
    }

    /// A request was answered.
    fn give_back(&mut self, answer: &Answer) -> io::Result<()> {
        let Answer {
            entry,
            header,
            behind,
            staged,
        } = answer;
        let memory = &self.shared.memory;
        memory.put(*entry, 0, staged);
        memory.answer(*entry, *header, *behind);
        self.held[*entry] = false;
        self.used[*entry] = self.used[*entry].max(*behind);
        let command = memory.commit(self.device.as_raw_fd(), self.number, *entry);
        memory::push(&mut self.ring, &command)
    }

    /// The kernel gives no more requests in an entry.
    fn lose(&mut self, result: i32) -> io::Result<()> {
        self.alive -= 1;
        let ends = [Errno::NOTCONN, Errno::CONNABORTED, Errno::CANCELED];
        match ends.iter().any(|errno| errno.raw_os_error() == -result) {
            true => Ok(()),
            false => Err(io::Error::from_raw_os_error(-result)),
        }
    }

    /// What was needed for a moment does not stay; only when the kernel has taken all that was given back.
    fn let_go(&mut self) {
        let large = |used: &usize| *used > SMALL;
        if self.used.iter().copied().filter(large).sum::<usize>() <= self.kept {
            return;
        }
        for (entry, used) in self.used.iter_mut().enumerate() {
            if *used > SMALL && !self.held[entry] {
                self.shared.memory.let_go(entry);
                *used = 0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_listed() {
        assert_eq!(parse("0-1\n"), Some(vec![0, 1]));
        assert_eq!(parse("0\n"), Some(vec![0]));
        assert_eq!(parse("0-2,8-9,64"), Some(vec![0, 1, 2, 8, 9, 64]));
        assert_eq!(parse("0-3,x"), None);
        assert_eq!(parse("3-0"), None);
        assert_eq!((entries(1), entries(64), entries(1_024)), (256, 128, 32));
    }

    #[test]
    fn whatever_ends_a_queue_is_told() {
        let told = Arc::new(Mutex::new(Vec::new()));
        let here = told.clone();
        let failed: Failed = Arc::new(move |cause| here.lock().push(cause.to_string()));
        watched(&failed, || Ok(()));
        assert!(told.lock().is_empty());
        watched(&failed, || Err(io::Error::other("cause")));
        watched(&failed, || panic!("of a test"));
        assert_eq!(told.lock()[..], ["cause", "a queue's thread panicked"]);
    }

    struct Nothing;

    impl fuser::Filesystem for Nothing {}

    #[test]
    fn what_is_lacking_is_seen_before_a_mount() {
        // More than there are addresses.
        let queues = Queues::<Nothing>::new(1 << 50);
        assert!(queues.is_err());
    }

    fn path(is_bare: bool) -> Path {
        Path {
            shared: Arc::new(Shared::new(2, 64 << 10).expect("a queue")),
            entry: 1,
            is_bare,
        }
    }

    #[test]
    fn an_answer_is_taken_in_any_pieces() {
        for is_bare in [true, false] {
            for pieces in [1, 3, 16, 17, 40] {
                let path = path(is_bare);
                let reply: Vec<u8> = (0..40).collect();
                let parts: Vec<_> = reply.chunks(pieces).map(IoSlice::new).collect();
                path.send(&parts).expect("sent");
                let [answer] = &path.shared.state.lock().answers[..] else {
                    panic!("one answer");
                };
                assert_eq!(answer.header[..], reply[..16]);
                assert_eq!(answer.behind, 24);
                assert_eq!(answer.staged, if is_bare { &[] } else { &reply[16..] });
            }
        }
    }

    #[test]
    fn an_answer_that_is_too_long_is_an_error_to_who_asked() {
        let path = path(true);
        let (header, long) = ([1; 16], vec![0; (64 << 10) + 1]);
        let sent = path.send(&[IoSlice::new(&header), IoSlice::new(&long)]);
        assert!(sent.is_err());
        let [answer] = &path.shared.state.lock().answers[..] else {
            panic!("one answer");
        };
        assert_eq!(answer.header[..8], [16, 0, 0, 0, 0xfb, 0xff, 0xff, 0xff]);
        assert_eq!((answer.header[8], answer.behind), (1, 0));
    }

    #[test]
    fn whoever_answers_elsewhere_wakes_the_thread_once() {
        let path = path(true);
        let woken = || {
            let mut counter = [0; 8];
            let flags = rustix::fs::fcntl_getfl(&path.shared.wake).expect("flags");
            rustix::fs::fcntl_setfl(&path.shared.wake, flags | rustix::fs::OFlags::NONBLOCK)
                .expect("set");
            let read = rustix::io::read(&path.shared.wake, &mut counter);
            read.map_or(0, |_| u64::from_ne_bytes(counter))
        };
        let answer = || path.send(&[IoSlice::new(&[0; 16])]).expect("sent");
        answer();
        assert_eq!(woken(), 0, "it does not sleep");
        path.shared.state.lock().sleeps = true;
        answer();
        answer();
        assert_eq!(woken(), 1);
        path.shared.state.lock().sleeps = true;
        path.shared.state.lock().thread = Some(std::thread::current().id());
        answer();
        assert_eq!(woken(), 0, "its own thread");
    }
}
