//! `cellar login --keep`: renews tickets and tokens before they expire, for services and batch
//! jobs.
//!
//! 1. The first round must succeed before readiness is reported. If the KDC does not answer yet (at
//!    boot), it is retried as in rule 3.
//! 2. The next round comes after half to six tenths of the tickets' life. The random part keeps a
//!    thousand jobs that started together from asking the KDC together, and the rest of the life is
//!    left for retries.
//! 3. After a failed round the next one comes after 5 s, then after twice as long each time, at
//!    most 5 min. Each wait is varied by a fifth. The tickets and tokens in hand stay valid
//!    meanwhile.
//! 4. A cache in a file is replaced in one step by another file that was filled before. So no
//!    program finds it empty, as could happen while `kinit` writes it. The old tickets in it are
//!    gone then, as after `kinit`.
//! 5. Waiting is measured by the wall clock, which is checked every minute. So a machine that was
//!    suspended notices within a minute that its tickets are old. SIGHUP starts a round at once.
//! 6. A command gets its own cache and session keyring. They are removed when it ends, and its exit
//!    code becomes the exit code of this program. Without a command, systemd is notified when the
//!    tokens are there (`Type=notify`). SIGTERM and SIGINT end the program.
//!
//! The kernel's keyrings belong to a thread. So all work on them, and the start of the command, is
//! done on the main thread, which is the thread that runs commands.

use std::ffi::OsString;
use std::io::IsTerminal as _;
use std::process::ExitStatus;
use std::time::Duration;

use cellar_kerberos::keyring::{self, KeyringKind};
use cellar_kerberos::{self as kerberos, CacheName, PrivateFile, programs};
use cellar_wire::ids::AfsTime;
use rustix::process::{Pid, Signal};
use sd_notify::NotifyState;
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};

use super::obtain::{Proof, Request};
use crate::failure::{Failure, Outcome};
use crate::identity::now;
use crate::output::outln;
use crate::service_manager;

/// The shortest and longest time between two rounds, in seconds.
const ROUND_SECONDS: (u32, u32) = (5, 4 * 3600);
/// The first and the longest wait after a failure, in seconds.
const RETRY_SECONDS: (u32, u32) = (5, 300);
/// Interval at which the wall clock is checked.
const LOOK: Duration = Duration::from_secs(60);

pub(super) async fn run(request: Request, cache: Option<String>, command: &[OsString]) -> Outcome {
    let private = match (&cache, command.is_empty()) {
        (None, false) => Some(PrivateFile::new()?),
        _ => None,
    };
    let target = match (&cache, &private) {
        (Some(name), _) => CacheName::named(name.clone()),
        (None, Some(private)) => CacheName::file(&private.path()),
        (None, None) => CacheName::own(),
    };
    if let Some(private) = &private
        && matches!(request.proof, Proof::TicketsThere)
    {
        copy_own(private).await?;
    }
    if !command.is_empty()
        && request.kernel.is_some()
        && request.place == KeyringKind::Session
        && keyring::kernel_has_client()
    {
        keyring::join_new_session()?;
    }
    let mut keeper = TokenRenewer {
        request,
        target,
        ends: 0,
        failures: 0,
        kept_proof: false,
    };
    let mut signals = Signals::new()?;
    let mut job = None;
    let mut said = false;
    loop {
        let wait = keeper.round(job.is_some()).await?;
        if keeper.ends > now() && job.is_none() {
            job = match command.split_first() {
                Some((program, arguments)) => Some(start(program, arguments, &keeper.target)?),
                None => None,
            };
            report_to_systemd(command.is_empty(), &keeper);
            if command.is_empty() && !said && std::io::stdout().is_terminal() {
                let until = cellar_admin::date::ctime(AfsTime(keeper.ends));
                outln!("Tokens until {until}; they are renewed until you press Ctrl-C");
                said = true;
            }
        } else {
            report_to_systemd(command.is_empty() && keeper.ends > 0, &keeper);
        }
        match sleep(wait, &mut signals, job.as_mut()).await? {
            WakeReason::Again => {}
            WakeReason::Stopped => {
                service_manager::tell(&[NotifyState::Stopping]);
                return Ok(());
            }
            WakeReason::Ended(status) => return exit_code(status),
        }
    }
}

struct TokenRenewer {
    request: Request,
    target: CacheName,
    /// When the first token expires; 0 while there is none.
    ends: u32,
    /// Failed rounds since the last successful one.
    failures: u32,
    /// The user has given the password. From then on tickets are renewed.
    kept_proof: bool,
}

impl TokenRenewer {
    /// Runs one round. Returns the seconds to wait for the next. If `has_job`, a failure to renew
    /// does not end the program: the job goes on without tokens.
    async fn round(&mut self, has_job: bool) -> Outcome<u32> {
        match self.obtain().await {
            Ok(ends) => {
                if self.failures > 0 {
                    tracing::warn!("tokens are renewed again");
                }
                let stuck = self.renews() && self.ends != 0 && ends <= self.ends;
                (self.ends, self.failures) = (ends, 0);
                if stuck {
                    tracing::warn!("the tickets cannot be renewed further; they end soon");
                    return Ok(ends.saturating_sub(now()).max(1));
                }
                let until = cellar_admin::date::ctime(AfsTime(ends));
                tracing::info!(%until, "new tokens");
                Ok(until_next_round(now(), ends, chance()))
            }
            Err(failure) => {
                // The user is not there to type a password a second time.
                if self.ends == 0 && self.renews() && !self.kept_proof {
                    return Err(failure);
                }
                if self.renews() && self.ends != 0 && self.ends <= now() && !has_job {
                    let message = "the tickets have run out and cannot be renewed; --keytab would \
                                   get new ones";
                    return Err(Failure::new(message));
                }
                self.failures += 1;
                let wait = until_next_try(self.failures, chance());
                let held = self.ends.saturating_sub(now());
                tracing::warn!(%failure, held_seconds = held, next_try_seconds = wait, "no new tokens");
                Ok(wait)
            }
        }
    }

    fn renews(&self) -> bool {
        !matches!(self.request.proof, Proof::Keytab(..))
    }

    /// Gets new tickets and hands the tokens over. Returns when the first of them ends.
    async fn obtain(&mut self) -> Outcome<u32> {
        let file = self.target_file().await?;
        let fresh = file.as_ref().map(|_| PrivateFile::new()).transpose()?;
        let work = match &fresh {
            Some(fresh) => CacheName::file(&fresh.path()),
            None => self.target.clone(),
        };
        if !self.renews() {
            self.request.prove(&work).await?;
        } else {
            if !self.kept_proof {
                self.request.prove(&self.target).await?;
                self.kept_proof = true;
            }
            if let (Some(file), Some(fresh)) = (&file, &fresh) {
                kerberos::copy(file, &fresh.path())?;
            }
            if self.ends != 0 {
                programs::renew(&work).await?;
            }
        }
        let tickets = self.request.tokens(&work).await?;
        if let (Some(file), Some(fresh)) = (&file, &fresh) {
            kerberos::copy(&fresh.path(), file)?;
        }
        let held = self.request.hand_over(tickets).await?;
        let ends = held.iter().map(|held| held.ticket.ends).min();
        ends.ok_or_else(|| Failure::new("no token"))
    }

    /// The file of the cache, if the cache is a file.
    async fn target_file(&self) -> Outcome<Option<std::path::PathBuf>> {
        Ok(kerberos::file_of(&self.target).await?)
    }
}

/// Copies the user's tickets into a private cache.
async fn copy_own(private: &PrivateFile) -> Outcome {
    let own = CacheName::own();
    let file = kerberos::file_of(&own).await?;
    let file = file.ok_or_else(|| {
        Failure::new(
            "your tickets are not in a file, so a job cannot have a copy of them: give --keytab, \
             or --cache with the name of the cache to use",
        )
    })?;
    if kerberos::granting_ticket(&own, now()).await?.is_none() {
        return Err(kerberos::Error::NoTicket.into());
    }
    Ok(kerberos::copy(&file, &private.path())?)
}

/// Seconds from now to the next round, for tickets that end at `ends`. `chance` is from 0 to 1.
fn until_next_round(now: u32, ends: u32, chance: f64) -> u32 {
    let life = f64::from(ends.saturating_sub(now));
    let wait = life * (0.5 + 0.1 * chance);
    (wait as u32).clamp(ROUND_SECONDS.0, ROUND_SECONDS.1)
}

/// Seconds to the next try after so many failures in a row. `chance` is from 0 to 1.
fn until_next_try(failures: u32, chance: f64) -> u32 {
    let doublings = failures.saturating_sub(1).min(16);
    let wait = (RETRY_SECONDS.0 << doublings).min(RETRY_SECONDS.1);
    ((f64::from(wait) * (0.8 + 0.4 * chance)) as u32).max(1)
}

fn chance() -> f64 {
    rand::random()
}

struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
    hangup: tokio::signal::unix::Signal,
}

impl Signals {
    fn new() -> Outcome<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.terminate.recv() => Signal::TERM,
            _ = self.interrupt.recv() => Signal::INT,
            _ = self.hangup.recv() => Signal::HUP,
        }
    }
}

/// The reason why a sleep ended.
enum WakeReason {
    /// It is time for a round.
    Again,
    /// A signal asked to stop.
    Stopped,
    /// The command has ended.
    Ended(ExitStatus),
}

/// Sleeps `seconds` by the wall clock. If there is a command, signals are passed on to it.
async fn sleep(
    seconds: u32,
    signals: &mut Signals,
    mut job: Option<&mut Child>,
) -> Outcome<WakeReason> {
    let until = now().saturating_add(seconds);
    loop {
        let left = until.saturating_sub(now());
        if left == 0 {
            return Ok(WakeReason::Again);
        }
        let pid = job.as_ref().and_then(|job| job.id());
        let ended = async {
            match &mut job {
                Some(job) => job.wait().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = tokio::time::sleep(LOOK.min(Duration::from_secs(left.into()))) => {}
            status = ended => return Ok(WakeReason::Ended(status?)),
            signal = signals.next() => match pid {
                // The terminal has sent the signal to the command itself.
                Some(_) if signal != Signal::TERM && std::io::stdin().is_terminal() => {}
                Some(pid) => {
                    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
                    if let Some(pid) = pid {
                        // The command may have ended in the meantime.
                        let _sent = rustix::process::kill_process(pid, signal);
                    }
                }
                None if signal == Signal::HUP => return Ok(WakeReason::Again),
                None => return Ok(WakeReason::Stopped),
            },
        }
    }
}

fn start(program: &OsString, arguments: &[OsString], cache: &CacheName) -> Outcome<Child> {
    let mut command = Command::new(program);
    command.args(arguments);
    if let Some(name) = cache.name() {
        command.env("KRB5CCNAME", name);
    }
    command
        .spawn()
        .map_err(|cause| Failure::new(format!("{}: {cause}", program.display())))
}

/// Returns the command's exit code. As in shells, the code is 128 plus the signal that ended the
/// command.
fn exit_code(status: ExitStatus) -> Outcome {
    use std::os::unix::process::ExitStatusExt as _;
    if status.success() {
        return Ok(());
    }
    let code = status
        .code()
        .or_else(|| status.signal().map(|signal| 128 + signal));
    let code = code.and_then(|code| u8::try_from(code).ok());
    Err(Failure::said(code.unwrap_or(crate::failure::FAILED)))
}

/// Reports the state to systemd; only without a command, since a command may speak to systemd
/// itself.
fn report_to_systemd(ours_to_report: bool, keeper: &TokenRenewer) {
    if !ours_to_report {
        return;
    }
    let until = cellar_admin::date::ctime(AfsTime(keeper.ends));
    let status = match keeper.failures {
        0 => format!("Tokens until {until}"),
        failures => format!("Tokens until {until}; {failures} attempts to renew them failed"),
    };
    if keeper.ends > now() {
        service_manager::tell(&[NotifyState::Ready, NotifyState::Status(&status)]);
    } else {
        service_manager::tell(&[NotifyState::Status(&status)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_come_after_half_of_the_life() {
        assert_eq!(until_next_round(1000, 1000 + 36_000, 0.0), 14_400);
        assert_eq!(until_next_round(1000, 1000 + 10_000, 0.0), 5000);
        assert_eq!(until_next_round(1000, 1000 + 10_000, 1.0), 6000);
        // Short tickets, and expired ones, do not cause a storm of requests.
        assert_eq!(until_next_round(1000, 1002, 0.5), 5);
        assert_eq!(until_next_round(1000, 10, 0.5), 5);
    }

    #[test]
    fn tries_come_ever_later() {
        let waits: Vec<_> = (1..=8)
            .map(|failures| until_next_try(failures, 0.5))
            .collect();
        assert_eq!(waits, [5, 10, 20, 40, 80, 160, 300, 300]);
        assert_eq!(until_next_try(u32::MAX, 1.0), 360);
        assert_eq!(until_next_try(1, 0.0), 4);
    }
}
