//! Programs that wait for an answer, and signals that end the wait.
//!
//! 1. The kernel sends `FUSE_INTERRUPT` for a request whose program has a signal of any kind,
//!    including those of timers and children. It sends one interrupt for a request, and does not
//!    name the signal. Source: Linux, `fs/fuse/dev.c`.
//! 2. A wait for a lock ends with `EINTR` at any interrupt. If the program wants that
//!    (`SA_RESTART`), the kernel restarts the call. Source: Linux, `fuse_setlk`.
//! 3. Every other wait ends only for a program that dies, because programs do not expect `EINTR`
//!    from files. So proc(5) is read repeatedly from the interrupt on: after a handled signal a
//!    fatal one may follow, and no interrupt reports it. Without a signal proc(5) is never read. A
//!    thread of another container is not visible, and waits to the end.
//! 4. An operation that is nearly done gets [`GRACE`]: if it were aborted, the program could not
//!    know what the server did.
//! 5. A dying program closes its files, and no signal reaches it then, so no interrupt comes.
//!    Therefore a close that must wait checks once whether its program is dying.
//! 6. Several threads read requests, so an interrupt may be read before its request is known here.
//!    The last [`EARLY_MAX`] of those are remembered. Numbers of requests are never reused.
//!    Interrupts are not answered, since the kernel expects no answer.

use std::collections::{HashMap, VecDeque};
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use fuser::Request;
use parking_lot::Mutex;
use tokio::sync::watch;

/// Time from an interrupt to the first check whether the program dies.
const GRACE: Duration = Duration::from_millis(100);
/// Interval of the later checks.
const LOOK_TIME: Duration = Duration::from_millis(500);
/// Remembered interrupts of unknown requests.
const EARLY_MAX: usize = 256;
/// `SIGKILL` in a mask of signals. Every signal that ends a program becomes this one for its
/// threads. Source: signal(7).
const KILL: u64 = 1 << 8;
/// `PF_EXITING`. Source: linux/sched.h.
const EXITING: u64 = 4;

/// Interrupts, by the numbers of requests.
#[derive(Debug, Default)]
pub(crate) struct Interrupts(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    waiting: HashMap<u64, watch::Sender<bool>>,
    early: VecDeque<u64>,
}

impl Interrupts {
    /// The kernel interrupts a request. The request may be finished, or may not have started to
    /// wait.
    pub(crate) fn interrupt(&self, request: u64) {
        let mut table = self.0.lock();
        if let Some(waiting) = table.waiting.get(&request) {
            waiting.send_replace(true);
            return;
        }
        if table.early.len() == EARLY_MAX {
            table.early.pop_front();
        }
        table.early.push_back(request);
    }

    /// Registers that a request waits.
    fn wait(&self, request: u64) -> watch::Receiver<bool> {
        let mut table = self.0.lock();
        let early = table.early.iter().position(|early| *early == request);
        let is_early = early.and_then(|at| table.early.remove(at)).is_some();
        let (sender, interrupted) = watch::channel(is_early);
        table.waiting.insert(request, sender);
        interrupted
    }

    fn end(&self, request: u64) {
        self.0.lock().waiting.remove(&request);
    }
}

/// A thread that has sent a request. Lives as long as the request is worked on.
#[derive(Debug)]
pub(crate) struct Caller {
    thread: u32,
    request: u64,
    /// Whether the request closes a file.
    closes: bool,
    interrupts: Arc<Interrupts>,
    /// Whether it was interrupted. Exists from the first wait on.
    interrupted: OnceLock<watch::Receiver<bool>>,
}

impl Drop for Caller {
    fn drop(&mut self) {
        if self.interrupted.get().is_some() {
            self.interrupts.end(self.request);
        }
    }
}

impl Caller {
    pub(crate) fn of(request: &Request, interrupts: &Arc<Interrupts>) -> Self {
        Self::new(request.pid(), request.unique().0, interrupts)
    }

    pub(crate) fn new(thread: u32, request: u64, interrupts: &Arc<Interrupts>) -> Self {
        Self {
            thread,
            request,
            closes: false,
            interrupts: interrupts.clone(),
            interrupted: OnceLock::new(),
        }
    }

    /// Marks the request as a close.
    pub(crate) fn closing(mut self) -> Self {
        self.closes = true;
        self
    }

    /// Completes when the thread has a signal, or had one since it started to wait.
    pub(crate) async fn interrupted(&self) {
        let wait = || self.interrupts.wait(self.request);
        let mut interrupted = self.interrupted.get_or_init(wait).clone();
        if interrupted
            .wait_for(|has_signal| *has_signal)
            .await
            .is_err()
        {
            // Cannot happen: the sender lives as long as this caller.
            std::future::pending().await
        }
    }

    /// Completes when a signal will end the thread, or is ending it.
    pub(crate) async fn killed(&self) {
        let looked_once = async {
            tokio::time::sleep(GRACE).await;
            if !self.is_dying() {
                std::future::pending().await
            }
        };
        tokio::select! {
            () = self.interrupted() => {}
            () = looked_once, if self.closes => return,
        }
        tokio::time::sleep(GRACE).await;
        while !self.is_killed() {
            tokio::time::sleep(LOOK_TIME).await;
        }
    }

    /// Runs `work` to its end and returns its result with the `reply`. If the caller is killed
    /// meanwhile, it is released with `let_go`, and there is no reply left to send.
    pub(crate) async fn outlived_by<T, R>(
        &self,
        work: impl Future<Output = T>,
        reply: R,
        let_go: impl FnOnce(R),
    ) -> Option<(R, T)> {
        let mut work = pin!(work);
        tokio::select! {
            biased;
            done = &mut work => return Some((reply, done)),
            () = self.killed() => let_go(reply),
        }
        work.await;
        None
    }

    fn is_killed(&self) -> bool {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.thread));
        status.is_ok_and(|text| kill_waits(&text)) || self.is_dying()
    }

    /// Returns whether a signal is ending the process. It closes its files then, and has no pending
    /// signal any more.
    fn is_dying(&self) -> bool {
        let text = std::fs::read_to_string(format!("/proc/{}/stat", self.thread));
        text.is_ok_and(|text| ends_by_signal(&text))
    }
}

/// Returns whether `/proc/N/status` lists a pending signal that kills the thread.
fn kill_waits(status: &str) -> bool {
    ["SigPnd:", "ShdPnd:"].iter().any(|name| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let mask = line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        mask.is_some_and(|mask| mask & KILL != 0)
    })
}

/// Evaluates `/proc/N/stat`: field 9 holds flags, field 52 the exit code. The name in it may
/// contain anything.
fn ends_by_signal(stat: &str) -> bool {
    let Some((_, rest)) = stat.rsplit_once(") ") else {
        return false;
    };
    let field = |number: usize| -> u64 {
        let field = rest.split_ascii_whitespace().nth(number - 3);
        field.and_then(|field| field.parse().ok()).unwrap_or(0)
    };
    // The form of wait(2): the low bits are the signal.
    field(9) & EXITING != 0 && field(52) & 0x7f != 0
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::sync::atomic::{AtomicBool, Ordering};

    use cellar_until::until_blocking;

    use super::*;

    fn stat(flags: u64, end: u64) -> String {
        let fields: Vec<_> = (10..52).map(|_| "0").collect();
        let fields = fields.join(" ");
        format!("7 (a) 4 4 (b) S 1 7 7 0 -1 {flags} {fields} {end}\n")
    }

    #[test]
    fn waits_that_a_signal_ends() {
        assert!(ends_by_signal(&stat(0x40_0104, 9)));
        assert!(ends_by_signal(&stat(4, 15)));
        // An exit by exit(1); a killed process that is not ending yet.
        assert!(!ends_by_signal(&stat(4, 0x100)));
        assert!(!ends_by_signal(&stat(0x40_0100, 9)));
        assert!(!ends_by_signal("7 (sh"));
        let own = std::fs::read_to_string("/proc/self/stat").expect("proc");
        assert!(!ends_by_signal(&own));
    }

    #[test]
    fn signals_that_kill() {
        let status = |thread, process| format!("SigPnd:\t{thread:016x}\nShdPnd:\t{process:016x}\n");
        assert!(kill_waits(&status(KILL, 0)) && kill_waits(&status(0, KILL | 1)));
        // SIGALRM, SIGCHLD.
        assert!(!kill_waits(&status(1 << 13, 1 << 16)) && !kill_waits(""));
    }

    /// Returns whether the program of a request is released from work that takes ten intervals.
    async fn is_let_go(caller: Caller) -> bool {
        let gone = AtomicBool::new(false);
        let let_go = |()| gone.store(true, Ordering::Relaxed);
        let begun = tokio::time::Instant::now();
        let work = tokio::time::sleep(LOOK_TIME * 10);
        let done = caller.outlived_by(work, (), let_go).await;
        assert_eq!(begun.elapsed(), LOOK_TIME * 10, "the work goes on");
        assert_eq!(done.is_none(), gone.load(Ordering::Relaxed));
        done.is_none()
    }

    #[tokio::test(start_paused = true)]
    async fn a_program_that_dies_is_let_go_and_its_work_goes_on() {
        // A thread that has ended and is not waited for keeps its fields.
        let mut child = Command::new("sleep")
            .arg("1000")
            .stdin(Stdio::null())
            .spawn()
            .expect("sleep");
        let interrupts = Arc::<Interrupts>::default();
        let new = |request| Caller::new(child.id(), request, &interrupts);
        // Both before the request is known and while it waits; the signal does not kill.
        interrupts.interrupt(1);
        assert!(!is_let_go(new(1)).await);
        let late = async {
            tokio::time::sleep(LOOK_TIME).await;
            interrupts.interrupt(2);
        };
        assert!(!tokio::join!(is_let_go(new(2)), late).0);
        let caller = new(3);
        let callers = [new(4), new(5).closing(), new(6), new(7)];
        child.kill().expect("kill");
        until_blocking("it is dying", || caller.is_dying());
        let [uninterrupted, closing, early, waiting] = callers;
        assert!(
            !is_let_go(uninterrupted).await,
            "looked at without an interrupt"
        );
        assert!(is_let_go(closing).await);
        interrupts.interrupt(6);
        assert!(is_let_go(early).await);
        let late = async {
            tokio::time::sleep(LOOK_TIME).await;
            interrupts.interrupt(7);
        };
        assert!(tokio::join!(is_let_go(waiting), late).0);
        child.wait().expect("its end");
        // After that proc(5) has no entry.
        assert!(!caller.is_killed());
        drop(caller);
        assert!(interrupts.0.lock().waiting.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn an_interrupt_reaches_every_wait_of_its_request() {
        let interrupts = Arc::<Interrupts>::default();
        let caller = Caller::new(0, 8, &interrupts);
        interrupts.interrupt(8);
        caller.interrupted().await;
        caller.interrupted().await;
        // The number of remembered interrupts is bounded.
        for request in 0..1000 {
            interrupts.interrupt(100 + request);
        }
        assert_eq!(interrupts.0.lock().early.len(), EARLY_MAX);
        let other = Caller::new(0, 9, &interrupts);
        let none = tokio::time::timeout(LOOK_TIME, other.interrupted()).await;
        assert!(none.is_err());
    }
}
