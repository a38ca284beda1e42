//! FUSE over io_uring (Linux 6.14): a request and its answer change hands on the processor of the program that asks.
//!
//! Through `/dev/fuse` whoever waits longest reads the next request, on whatever processor that is, which has to be
//! woken from another; here each processor has a queue and a thread that stays there. A queue is an io_uring of
//! commands to the device, one for each [entry](memory): a command ends when there is a request, and the next one has
//! its answer.
//!
//! 1. *An entry is held from a request to its answer*, so they bound how many requests of one processor may wait for
//!    servers at a time: [`entries`] says how many. What does not find one waits in the kernel.
//! 2. *Whoever answers on the queue's own thread* leaves his answer to the next `io_uring_enter`, which there is in any
//!    case; others wake the thread, if it sleeps.
//! 3. *The device stays*: the kernel tells there most of what it forgets, and takes notices there. What it does tell here
//!    (Linux 6.18: of one file, when a directory is read) has to be answered here, though no file system does.
//! 4. *The end*: commands that the kernel holds end with ENOTCONN, and those of requests that are answered later, too.
//!    What else goes wrong would leave programs waiting for ever: then the whole connection is ended (`failed`).

use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::thread::ThreadId;

use fuser::{Dispatcher, ReplyPath, Worker};
use io_uring::{IoUring, cqueue, squeue};
use parking_lot::Mutex;
use rustix::event::EventfdFlags;
use rustix::io::Errno;
use rustix::thread::CpuSet;

use memory::{Memory, OUT_HEADER};

mod memory;

type Ring = IoUring<squeue::Entry128, cqueue::Entry>;

/// Processors that there may be, also later: the kernel wants a queue for each.
const POSSIBLE: &str = "/sys/devices/system/cpu/possible";
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
    /// Whether it is to be asked for.
    ///
    /// # Errors
    /// It is required, and cannot be used.
    pub(crate) fn wanted(self) -> io::Result<bool> {
        if self == Self::Never {
            return Ok(false);
        }
        let offered = match std::fs::read_to_string(OFFERED) {
            Ok(text) if text.trim() == "Y" => {
                processors().and_then(|_| ring(ENTRIES_MIN)).map(drop)
            }
            Ok(_) => Err(io::Error::other(format!(
                "it is switched off: echo Y > {OFFERED}"
            ))),
            Err(_) => Err(io::Error::other("it needs Linux 6.14")),
        };
        match offered {
            Ok(()) => Ok(true),
            Err(cause) if self == Self::Required => {
                let text = format!("FUSE over io_uring cannot be used: {cause}");
                Err(io::Error::new(io::ErrorKind::Unsupported, text))
            }
            Err(cause) => {
                tracing::debug!(%cause, "without FUSE over io_uring");
                Ok(false)
            }
        }
    }
}

/// How many processors there may be.
fn processors() -> io::Result<u16> {
    count(&std::fs::read_to_string(POSSIBLE)?)
        .ok_or_else(|| io::Error::other(format!("{POSSIBLE} is not understood")))
}

/// Of a list like `0-3,8`.
fn count(list: &str) -> Option<u16> {
    let ranges = list.trim().split(',').map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (first.parse::<u16>().ok()?, last.parse::<u16>().ok()?);
        last.checked_sub(first)?.checked_add(1)
    });
    ranges.sum()
}

/// Of one queue, where there are so many.
fn entries(queues: u16) -> usize {
    (ENTRIES / usize::from(queues.max(1))).clamp(ENTRIES_MIN, ENTRIES_MAX)
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

/// The threads of all queues of a mount. `payload`: bytes of a request or a reply at most, without headers. `failed` ends the
/// connection, as nobody would answer what comes to a queue.
pub(crate) fn workers<F: fuser::Filesystem>(
    device: &Arc<OwnedFd>,
    payload: usize,
    failed: &Arc<dyn Fn(io::Error) + Send + Sync>,
) -> io::Result<Vec<Worker<F>>> {
    let queues = processors()?;
    let worker = |queue| {
        let shared = Arc::new(Shared::new(entries(queues), payload)?);
        let (device, failed, stopping) = (device.clone(), failed.clone(), shared.clone());
        let kept = (KEPT / usize::from(queues)).max(KEPT_MIN);
        Ok(Worker {
            name: format!("fuse-ring-{queue}"),
            run: Box::new(move |dispatcher| {
                let queue = Queue::new(device, queue, shared, kept);
                if let Err(cause) = queue.and_then(|queue| queue.run(&dispatcher)) {
                    failed(cause);
                }
            }),
            stop: Box::new(move || stopping.stop()),
        })
    };
    (0..queues).map(worker).collect()
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
    wake: OwnedFd,
    state: Mutex<State>,
}

impl Shared {
    fn new(entries: usize, payload: usize) -> io::Result<Self> {
        Ok(Self {
            memory: Memory::new(entries, payload)?,
            entries,
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
        device: Arc<OwnedFd>,
        number: u16,
        shared: Arc<Shared>,
        kept: usize,
    ) -> io::Result<Self> {
        stay_on(number);
        shared.state.lock().thread = Some(std::thread::current().id());
        let entries = shared.entries;
        let mut queue = Self {
            ring: ring(entries)?,
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
        queue.ring.submit()?;
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
            self.let_go();
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

    /// What was needed for a moment does not stay.
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
    fn processors_are_counted() {
        assert_eq!(count("0-1\n"), Some(2));
        assert_eq!(count("0\n"), Some(1));
        assert_eq!(count("0-3,8-11,64"), Some(9));
        assert_eq!(count("0-3,x"), None);
        assert_eq!(count("3-0"), None);
        assert_eq!((entries(1), entries(64), entries(1_024)), (256, 128, 32));
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
