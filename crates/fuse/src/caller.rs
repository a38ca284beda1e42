//! Who waits for an answer, and whether he still does.
//!
//! The kernel lets a program that is killed go as soon as its request is answered, and tells of the kill by a request of
//! its own (`FUSE_INTERRUPT`), which [`fuser`] refuses. So whoever waits long is looked at instead: signals that wait for
//! a thread, and that it is ending, can be read in proc(5). A thread of another container is not seen; it waits to the end.

use std::pin::pin;
use std::time::Duration;

use fuser::Request;

/// How often those who wait are looked at.
const LOOK_TIME: Duration = Duration::from_millis(500);
/// `SIGKILL` in a mask of signals. Every signal that ends a program becomes this one for its threads. Source: signal(7).
const KILL: u64 = 1 << 8;
/// `PF_EXITING`. Source: linux/sched.h.
const EXITING: u64 = 4;

/// A thread that has sent a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller(u32);

impl Caller {
    pub(crate) fn of(request: &Request) -> Self {
        Self(request.pid())
    }

    pub(crate) fn new(thread: u32) -> Self {
        Self(thread)
    }

    /// Done when the thread is to end by a signal, or does.
    pub(crate) async fn killed(self) {
        loop {
            tokio::time::sleep(LOOK_TIME).await;
            if self.is_killed() {
                return;
            }
        }
    }

    /// Does `work` to its end, and answers what it came to with the `reply` for it. A caller who is killed meanwhile is
    /// let go with that; then nobody is left to be answered.
    pub(crate) async fn outlived_by<T, R>(
        self,
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

    fn is_killed(self) -> bool {
        self.signals()
            .is_some_and(|signals| signals.waiting & KILL != 0)
            || self.is_dying()
    }

    /// Whether a signal waits for the thread that it does not ignore.
    pub(crate) fn is_signalled(self) -> bool {
        self.signals()
            .is_some_and(|signals| signals.waiting & !signals.ignored != 0)
    }

    /// `None`: it is gone, or in another container: nothing is known.
    fn signals(self) -> Option<Signals> {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.0)).ok()?;
        let signals = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
                .unwrap_or(0)
        };
        Some(Signals {
            waiting: signals("SigPnd:") | signals("ShdPnd:"),
            ignored: signals("SigBlk:") | signals("SigIgn:"),
        })
    }

    /// Whether it ends because of a signal: it closes its files then, and no signal waits for it any more.
    fn is_dying(self) -> bool {
        let text = std::fs::read_to_string(format!("/proc/{}/stat", self.0));
        text.is_ok_and(|text| ends_by_signal(&text))
    }
}

/// Masks of a thread.
struct Signals {
    waiting: u64,
    /// Or blocked.
    ignored: u64,
}

/// Of the text of `/proc/N/stat`: flags are its 9th field, how it ends its 52nd. Its name may be anything.
fn ends_by_signal(stat: &str) -> bool {
    let Some((_, rest)) = stat.rsplit_once(") ") else {
        return false;
    };
    let field = |number: usize| -> u64 {
        let field = rest.split_ascii_whitespace().nth(number - 3);
        field.and_then(|field| field.parse().ok()).unwrap_or(0)
    };
    // What wait(2) tells: the low bits are the signal.
    field(9) & EXITING != 0 && field(52) & 0x7f != 0
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    fn stat(flags: u64, end: u64) -> String {
        let fields: Vec<_> = (10..52).map(|_| "0").collect();
        let fields = fields.join(" ");
        format!("7 (a) 4 4 (b) S 1 7 7 0 -1 {flags} {fields} {end}\n")
    }

    #[test]
    fn what_ends_by_a_signal() {
        assert!(ends_by_signal(&stat(0x40_0104, 9)));
        assert!(ends_by_signal(&stat(4, 15)));
        // By exit(1); killed but not ending yet.
        assert!(!ends_by_signal(&stat(4, 0x100)));
        assert!(!ends_by_signal(&stat(0x40_0100, 9)));
        assert!(!ends_by_signal("7 (sh"));
        let own = std::fs::read_to_string("/proc/self/stat").expect("proc");
        assert!(!ends_by_signal(&own));
    }

    #[tokio::test(start_paused = true)]
    async fn work_goes_on_when_nobody_waits_for_it() {
        // A thread that has ended but is not waited for keeps its fields.
        let mut child = Command::new("sleep")
            .arg("1000")
            .stdin(Stdio::null())
            .spawn()
            .expect("sleep");
        let caller = Caller::new(child.id());
        let gone = AtomicBool::new(false);
        let let_go = |()| gone.store(true, Ordering::Relaxed);
        let work = || tokio::time::sleep(LOOK_TIME * 10);
        let done = caller.outlived_by(work(), (), let_go).await;
        assert!(
            done.is_some() && !gone.load(Ordering::Relaxed),
            "nobody killed it"
        );
        child.kill().expect("kill");
        while !caller.is_killed() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let begun = tokio::time::Instant::now();
        let done = caller.outlived_by(work(), (), let_go).await;
        assert!(done.is_none() && gone.load(Ordering::Relaxed));
        assert_eq!(begun.elapsed(), LOOK_TIME * 10);
        child.wait().expect("its end");
        // Nothing is known of it then.
        assert!(!caller.is_killed());
    }
}
