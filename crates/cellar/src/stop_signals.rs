//! The signals to a program that serves: SIGINT (Ctrl-C) and SIGTERM end it. SIGHUP ends a mount. A
//! server with a terminal ends too, because SIGHUP means that the terminal was closed. A server
//! without a terminal reads its configuration again.
//!
//! `bos restart` ends a server too, which then starts again ([`crate::restart`]).
//!
//! A program listens before it opens its ports. Otherwise a signal could end a program that already
//! answers, without a clean stop. A shell starts background jobs with SIGINT ignored, so that
//! signal would be lost.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::Outcome;
use crate::restart::Restart;

/// The signals that end a server without a runtime of its own.
pub(crate) struct StopSignals {
    runtime: tokio::runtime::Runtime,
    interrupt: Signal,
    terminate: Signal,
    /// `None`: SIGHUP is ignored, as under `nohup`.
    hangup: Option<Signal>,
    /// Whether the process has a terminal that may be closed.
    has_terminal: bool,
}

/// A signal or request to a server.
enum Event {
    Reload,
    End(End),
}

/// The cause of a server's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// A signal, by name.
    Signal(&'static str),
    /// A superuser asked for a restart.
    Restart,
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
        let hangup = match ignores_hangup() {
            true => None,
            false => Some(signal(SignalKind::hangup())?),
        };
        drop(entered);
        Ok(Self {
            runtime,
            interrupt,
            terminate,
            hangup,
            has_terminal: std::fs::File::open("/dev/tty").is_ok(),
        })
    }

    /// Waits for a signal or a request that ends the server. After that, the next such signal ends
    /// the process at once. Until then, each SIGHUP calls `reload`.
    pub(crate) fn wait(mut self, restart: &Restart, mut reload: impl FnMut()) -> End {
        let end = loop {
            match self.next(Some(restart)) {
                Event::Reload => reload(),
                Event::End(end) => break end,
            }
        };
        std::thread::spawn(move || {
            while matches!(self.next(None), Event::Reload) {}
            std::process::exit(130);
        });
        end
    }

    fn next(&mut self, restart: Option<&Restart>) -> Event {
        let Self {
            runtime,
            interrupt,
            terminate,
            hangup,
            has_terminal,
        } = self;
        runtime.block_on(async {
            tokio::select! {
                _ = interrupt.recv() => Event::End(End::Signal("interrupt")),
                _ = terminate.recv() => Event::End(End::Signal("terminate")),
                () = hung_up(hangup) => match has_terminal {
                    true => Event::End(End::Signal("hangup")),
                    false => Event::Reload,
                },
                () = asked(restart) => Event::End(End::Restart),
            }
        })
    }
}

/// Waits for the request of a restart, if there may be one.
async fn asked(restart: Option<&Restart>) {
    match restart {
        Some(restart) => restart.asked().await,
        None => std::future::pending().await,
    }
}

/// Waits for SIGHUP, unless it is ignored.
async fn hung_up(hangup: &mut Option<Signal>) {
    match hangup {
        Some(hangup) => {
            hangup.recv().await;
        }
        None => std::future::pending().await,
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
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            // SIGHUP means that the terminal was closed.
            () = hung_up(&mut self.hangup) => {}
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
