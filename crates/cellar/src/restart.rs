//! Restart of a server on request of `bos restart`: a clean stop, then the program of the same path
//! in the same process.
//!
//! | state | next |
//! | --- | --- |
//! | serves | a superuser's call asks for the restart ([`Restart::ask`]) |
//! | asked | the reply to that call leaves within [`REPLY_TIME`]; then the clean stop begins |
//! | stopped | [`run`] replaces the process; after a failure the process ends with it |
//!
//! The process keeps its number, so that a service manager still watches it. The new start has the
//! command line of this one without options for one start: a damaged journal is not dropped twice.
//! An upgraded program at the same path is the one that starts.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::{ArgAction, Command};
use tokio::sync::Notify;

use crate::failure::Failure;
use crate::settings;

/// The time that the reply to the caller has.
const REPLY_TIME: Duration = Duration::from_millis(300);

/// The request for a restart.
#[derive(Clone, Debug, Default)]
pub(crate) struct Restart(Arc<Notify>);

impl Restart {
    /// Asks for a restart.
    pub(crate) fn ask(&self) {
        self.0.notify_one();
    }

    /// Waits until a restart is asked for and the caller has its reply.
    pub(crate) async fn asked(&self) {
        self.0.notified().await;
        tokio::time::sleep(REPLY_TIME).await;
    }
}

/// The path of this program. It is read at the start: later another program may be at it.
///
/// # Errors
/// The system does not know it.
pub(crate) fn program() -> std::io::Result<PathBuf> {
    std::env::current_exe()
}

/// Replaces this process. Returns only if that fails.
pub(crate) fn run(program: &PathBuf, command: &Command) -> Failure {
    let words: Vec<OsString> = std::env::args_os().collect();
    let mut words = lasting(words, command).into_iter();
    let name = words.next().unwrap_or_default();
    let cause = std::process::Command::new(program)
        .arg0(name)
        .args(words)
        .exec();
    Failure::new(format!(
        "the server has stopped for its restart, and {} does not start: {cause}",
        program.display()
    ))
}

/// The command line without options for one start.
fn lasting(words: Vec<OsString>, command: &Command) -> Vec<OsString> {
    let takes_value = |key: &str| {
        let mut arguments = command.get_arguments();
        let found = arguments.find(|argument| argument.get_long() == Some(key));
        found.is_some_and(|argument| {
            matches!(argument.get_action(), ArgAction::Set | ArgAction::Append)
        })
    };
    let mut lasting = Vec::with_capacity(words.len());
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        let text = word.to_str().unwrap_or_default();
        let (key, attached) = match text.split_once('=') {
            Some((key, _)) => (key, true),
            None => (text, false),
        };
        match key.strip_prefix("--") {
            // The configuration file is for every start.
            Some(key) if key != "config" && settings::is_for_one_start(key) => {
                if !attached && takes_value(key) {
                    words.next();
                }
            }
            _ => lasting.push(word),
        }
    }
    lasting
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::Daemon;

    #[test]
    fn options_for_one_start_are_not_repeated() {
        let line = "cellar --log info up --dir /srv/c --new-partition b --drop-damaged-journal=vicepa \
                    --new-database --config /etc/c.toml --join /root/etc --bind 192.0.2.1";
        let words = line.split_whitespace().map(OsString::from).collect();
        let kept = lasting(words, &crate::command_of(Daemon::Up));
        let kept: Vec<_> = kept.iter().filter_map(|word| word.to_str()).collect();
        let expected = "cellar --log info up --dir /srv/c --config /etc/c.toml --bind 192.0.2.1";
        assert_eq!(kept.join(" "), expected);
    }
}
