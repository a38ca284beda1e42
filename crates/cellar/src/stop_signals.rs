//! The signals that end a program that serves: SIGINT (Ctrl-C), SIGTERM, and SIGHUP for a mount.
//!
//! A program listens before it announces that it serves. Between the two, a signal would end it
//! without a clean stop. A shell starts background jobs with SIGINT ignored, so that signal would
//! be lost.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::Outcome;

/// The signals that end a server without a runtime of its own.
pub(crate) struct StopSignals {
    runtime: tokio::runtime::Runtime,
    interrupt: Signal,
    terminate: Signal,
}

impl StopSignals {
    /// Listens from now on.
    ///
    /// # Errors
    /// The system refuses a handler or a thread.
    pub(crate) fn listen() -> Outcome<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let entered = runtime.enter();
        let interrupt = signal(SignalKind::interrupt())?;
        let terminate = signal(SignalKind::terminate())?;
        drop(entered);
        Ok(Self {
            runtime,
            interrupt,
            terminate,
        })
    }

    /// Waits for a signal, and returns its name. After that, the next signal ends the process at
    /// once.
    pub(crate) fn wait(self) -> &'static str {
        let Self {
            runtime,
            mut interrupt,
            mut terminate,
        } = self;
        let name = runtime.block_on(next(&mut interrupt, &mut terminate));
        std::thread::spawn(move || {
            runtime.block_on(next(&mut interrupt, &mut terminate));
            std::process::exit(130);
        });
        name
    }
}

async fn next(interrupt: &mut Signal, terminate: &mut Signal) -> &'static str {
    tokio::select! {
        _ = interrupt.recv() => "interrupt",
        _ = terminate.recv() => "terminate",
    }
}

/// The signals that end a mount.
pub(crate) struct MountSignals {
    interrupt: Signal,
    terminate: Signal,
    /// `None`: SIGHUP is ignored, as under `nohup`, so that the mount survives its terminal.
    hangup: Option<Signal>,
}

impl MountSignals {
    /// Listens from now on. The caller is in a runtime.
    ///
    /// # Errors
    /// The system refuses a handler.
    pub(crate) fn listen() -> Outcome<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: match ignores_hangup() {
                true => None,
                false => Some(signal(SignalKind::hangup())?),
            },
        })
    }

    /// Waits for a signal.
    pub(crate) async fn next(&mut self) {
        // SIGHUP means that the terminal was closed.
        let hung_up = async {
            match &mut self.hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            _ = hung_up => {}
        }
    }
}

/// Returns whether SIGHUP is ignored.
fn ignores_hangup() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    first_is_ignored(&status)
}

/// Returns whether the first signal, SIGHUP, is ignored. Source: proc_pid_status(5), `SigIgn`.
fn first_is_ignored(status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & 1 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hangups_that_are_ignored() {
        for (mask, ignored) in [("0000000000001001", true), ("0000000000001000", false)] {
            let status = format!("SigBlk:\t0000000000000001\nSigIgn:\t{mask}\n");
            assert_eq!(first_is_ignored(&status), ignored, "{mask}");
        }
        assert!(!first_is_ignored(""));
    }
}
