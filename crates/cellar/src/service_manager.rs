//! Messages to the service manager that started the daemon (systemd, sd_notify(3)).
//!
//! | message | when |
//! | --- | --- |
//! | `READY=1` | the daemon serves |
//! | `WATCHDOG=1` | twice in each `WatchdogSec=`, while every network thread answers |
//! | `RELOADING=1` | the daemon reads its configuration again; `READY=1` follows |
//! | `RELOADING=1` | a restart begins in the same process; `READY=1` of the new start follows |
//! | `STOPPING=1` | a clean stop begins |
//!
//! Without a service manager (`NOTIFY_SOCKET` is not set) there are no messages. A message that
//! cannot be sent is logged, and the daemon serves on.

use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use cellar_rpc::Port;
use sd_notify::NotifyState;

/// Sends a message.
pub(crate) fn tell(state: &[NotifyState<'_>]) {
    match sd_notify::notify(state) {
        Ok(()) => {}
        // `mount.cellar` waits only until the mount is ready.
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => {
            tracing::debug!(%cause, "the service manager is gone");
        }
        Err(cause) => tracing::warn!(%cause, "the service manager cannot be told"),
    }
}

/// Reads the configuration again by `work`, between the messages about it.
pub(crate) fn reload(work: impl FnOnce()) {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(cause) => tracing::warn!(%cause, "the service manager cannot be told of a reload"),
    }
    work();
    tell(&[NotifyState::Ready]);
}

/// A daemon that has told the service manager that it serves.
pub(crate) struct Announced {
    /// Dropped to end the proofs of life.
    _running: Option<SyncSender<()>>,
}

impl Announced {
    /// Tells that the daemon serves. If the service manager asks for proofs of life, sends them
    /// while the threads of `ports` answer.
    pub(crate) fn ready(ports: Vec<Port>) -> Self {
        tell(&[NotifyState::Ready]);
        let running = sd_notify::watchdog_enabled().and_then(|limit| prove_life(ports, limit / 2));
        Self { _running: running }
    }

    /// Tells that the server restarts in this process. After `STOPPING=1` the service manager would
    /// wait for the end of the process.
    pub(crate) fn restarting(self) {
        match NotifyState::monotonic_usec_now() {
            Ok(now) => tell(&[NotifyState::Reloading, now]),
            Err(cause) => tracing::warn!(%cause, "the service manager cannot be told of a restart"),
        }
    }

    /// Tells that a clean stop begins. The proofs of life end: a stop has a time limit of its own.
    pub(crate) fn stopping(self) {
        tell(&[NotifyState::Stopping]);
    }
}

/// Starts the thread of the proofs. `None` if there is none, which the log says; the service
/// manager will then restart the daemon.
fn prove_life(ports: Vec<Port>, interval: Duration) -> Option<SyncSender<()>> {
    let (running, stop) = sync_channel::<()>(1);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime
        .map_err(|cause| tracing::error!(%cause, "no watchdog"))
        .ok()?;
    let thread = thread::Builder::new().name("watchdog".to_owned());
    let started = thread.spawn(move || {
        let mut missed = false;
        loop {
            let lives = runtime.block_on(async {
                let answers = async {
                    for port in &ports {
                        // The answer needs every thread of the port.
                        let _closed = port.socket_figures().await;
                    }
                };
                tokio::time::timeout(interval, answers).await.is_ok()
            });
            if lives {
                tell(&[NotifyState::Watchdog]);
            } else if !missed {
                tracing::error!(
                    ?interval,
                    "a network thread does not answer: no proof of life"
                );
            }
            missed = !lives;
            if stop.recv_timeout(interval) != Err(RecvTimeoutError::Timeout) {
                return;
            }
        }
    });
    match started {
        Ok(_thread) => Some(running),
        Err(cause) => {
            tracing::error!(%cause, "no watchdog");
            None
        }
    }
}
