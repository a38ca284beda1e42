//! The requests of `bos` to an overseer that change something, and the message for a refusal of
//! each. The messages are those of OpenAFS's `bos`.

use cellar_rpc::CallError;
use cellar_wire::AbortCode;
use cellar_wire::bozo::{self, GOAL_NORMAL, GOAL_SHUTDOWN};

use super::{Overseer, RestartTime, text};
use crate::error::{Error, Form, Result};

/// The argument that stands for no notifier. Source: afs-rpcs §12.
const NO_NOTIFIER: &str = "__NONOTIFIER__";

/// The most command lines of an instance.
pub const COMMANDS_MAX: usize = 5;

/// A request to an overseer.
#[derive(Clone, Copy, Debug)]
pub enum Act<'a> {
    /// Start an instance and keep it running, also after a restart of the overseer.
    Start(&'a str),
    /// Stop an instance, also for after a restart of the overseer.
    Stop(&'a str),
    /// Start an instance; a restart of the overseer ends that.
    StartForNow(&'a str),
    /// Stop an instance; a restart of the overseer ends that.
    StopForNow(&'a str),
    /// Stop and start an instance.
    Restart(&'a str),
    /// Start all instances.
    StartAll,
    /// Stop all instances.
    StopAll,
    /// Stop and start all instances.
    RestartAll,
    /// Restart the overseer itself.
    RestartOverseer,
    /// Wait until no instance is starting or stopping.
    Wait,
    /// Create an instance.
    Create {
        /// Its name.
        name: &'a str,
        /// `simple`, `cron`, `fs` or `dafs`.
        kind: &'a str,
        /// Command lines, at most [`COMMANDS_MAX`].
        commands: &'a [String],
        /// A program that the overseer runs when the instance ends.
        notifier: Option<&'a str>,
    },
    /// Delete an instance.
    Delete(&'a str),
    /// Run a command.
    Execute(&'a str),
    /// Restore an older version of a program.
    Uninstall {
        /// The name that the user gave.
        name: &'a str,
        /// Its path on the server.
        path: &'a str,
    },
    /// Remove old programs, `PRUNE_*`.
    Prune(i32),
    /// Give the server's cell a name.
    SetCellName(&'a str),
    /// Add a database server to the cell's list there.
    AddHost(&'a str),
    /// Remove a database server from that list.
    RemoveHost(&'a str),
    /// Whether every caller has all permissions.
    SetNoAuth(bool),
    /// The time at which the overseer restarts all processes, `RESTART_*`.
    SetRestart(i32, RestartTime),
    /// Restricted mode, in which the overseer neither installs nor runs programs.
    SetRestricted(i32),
    /// Add a superuser.
    AddUser(&'a str),
    /// Remove a superuser.
    RemoveUser(&'a str),
    /// Remove the keys of a version; tickets sealed with them are no longer accepted.
    RemoveKey(i32),
}

impl Act<'_> {
    /// The message of a refusal, and the place of the reason in it.
    fn words(&self) -> (String, Form) {
        let what = match self {
            Self::Start(name) => format!("failed to start instance '{name}'"),
            Self::Stop(name) => format!("failed to change stop instance '{name}'"),
            Self::StartForNow(name) => format!("failed to start instance {name}"),
            Self::StopForNow(name) => format!("failed to shutdown instance {name}"),
            Self::Restart(name) => format!("failed to restart instance {name}"),
            Self::StartAll => "failed to startup servers".to_owned(),
            Self::StopAll => "failed to shutdown servers".to_owned(),
            Self::RestartAll => "failed to restart servers".to_owned(),
            Self::RestartOverseer => "failed to restart bosserver".to_owned(),
            Self::Wait => "can't wait for processes to shutdown".to_owned(),
            Self::Create { name, kind, .. } => {
                format!("failed to create new server instance {name} of type '{kind}'")
            }
            Self::Delete(name) => format!("failed to delete instance '{name}'"),
            Self::Execute(_) => "failed to execute command".to_owned(),
            Self::Uninstall { name, .. } => format!("failed to uninstall {name}"),
            Self::Prune(_) => return (" (failed to prune server files)".to_owned(), Form::Before),
            Self::SetCellName(_) => "failed to set cell".to_owned(),
            Self::AddHost(host) => format!("failed to add host {host}"),
            Self::RemoveHost(host) => format!("failed to delete host {host}"),
            Self::SetNoAuth(_) => {
                let what = " (failed to set authentication flag)".to_owned();
                return (what, Form::Before);
            }
            Self::SetRestart(..) => "failed to set restart time at server".to_owned(),
            Self::SetRestricted(_) => "failed to set restricted mode".to_owned(),
            Self::AddUser(name) => format!("failed to add user '{name}'"),
            Self::RemoveUser(name) => format!("failed to delete user '{name}',"),
            Self::RemoveKey(kvno) => format!("failed to delete key {kvno}"),
        };
        (what, Form::Brackets)
    }

    /// The codes with which a Cellar server refuses requests that do not apply to it, with the
    /// reason.
    fn inapplicable(&self) -> Option<(AbortCode, &'static str)> {
        Some(match self {
            Self::Stop(_) | Self::StopForNow(_) | Self::StopAll => (
                AbortCode::BZBUSY,
                "A Cellar server runs all its roles in one process, and no call could start them again. 'bos restart' \
                 restarts the process; 'systemctl stop cellar' on that machine stops it",
            ),
            Self::Restart(_) | Self::RestartAll | Self::RestartOverseer => (
                AbortCode::BZBUSY,
                "The server is of an older release of Cellar: 'systemctl restart cellar' on that machine restarts it",
            ),
            Self::Create { .. }
            | Self::Delete(_)
            | Self::Execute(_)
            | Self::Uninstall { .. }
            | Self::Prune(_)
            | Self::SetCellName(_)
            | Self::AddHost(_)
            | Self::RemoveHost(_)
            | Self::SetNoAuth(_)
            | Self::SetRestart(..)
            | Self::SetRestricted(_) => (
                AbortCode::BZACCESS,
                "You are no superuser of that server ('bos listusers' shows them), or the server is Cellar's: there \
                 the configuration file and the service manager have this task, and there are no programs to \
                 install",
            ),
            _ => return None,
        })
    }
}

impl Overseer<'_> {
    /// Makes a request.
    ///
    /// # Errors
    /// The caller has no permission, there is no such object, or it is not possible now.
    pub async fn act(&self, act: &Act<'_>) -> Result<()> {
        let connection = self.connection();
        let done: std::result::Result<(), CallError> = match *act {
            Act::Start(name) => self.set_goal(name, GOAL_NORMAL).await?,
            Act::Stop(name) => self.set_goal(name, GOAL_SHUTDOWN).await?,
            Act::StartForNow(name) => self.set_goal_for_now(name, GOAL_NORMAL).await?,
            Act::StopForNow(name) => self.set_goal_for_now(name, GOAL_SHUTDOWN).await?,
            Act::Restart(name) => {
                let instance = text(name)?;
                connection.call(&bozo::Restart { instance }).await.map(drop)
            }
            Act::StartAll => connection.call(&bozo::StartupAll {}).await.map(drop),
            Act::StopAll => connection.call(&bozo::ShutdownAll {}).await.map(drop),
            Act::RestartAll => connection.call(&bozo::RestartAll {}).await.map(drop),
            Act::RestartOverseer => connection.call(&bozo::ReBozo {}).await.map(drop),
            Act::Wait => connection.call(&bozo::WaitAll {}).await.map(drop),
            Act::Create {
                name,
                kind,
                commands,
                notifier,
            } => {
                let command = |index: usize| text(commands.get(index).map_or("", String::as_str));
                let arguments = bozo::CreateBnode {
                    bnode_type: text(kind)?,
                    instance: text(name)?,
                    p1: command(0)?,
                    p2: command(1)?,
                    p3: command(2)?,
                    p4: command(3)?,
                    p5: command(4)?,
                    p6: text(notifier.unwrap_or(NO_NOTIFIER))?,
                };
                connection.call(&arguments).await.map(drop)
            }
            Act::Delete(name) => {
                let instance = text(name)?;
                match connection.call(&bozo::DeleteBnode { instance }).await {
                    Err(cause) if cause.code() == AbortCode::BZBUSY => {
                        let reason = format!("can't delete running instance '{name}'");
                        return Err(Error::refused(reason, cause));
                    }
                    other => other.map(drop),
                }
            }
            Act::Execute(command) => {
                let command = text(command)?;
                connection.call(&bozo::Exec { command }).await.map(drop)
            }
            Act::Uninstall { path, .. } => {
                let path = text(path)?;
                connection.call(&bozo::UnInstall { path }).await.map(drop)
            }
            Act::Prune(flags) => connection.call(&bozo::Prune { flags }).await.map(drop),
            Act::SetCellName(name) => {
                let name = text(name)?;
                connection.call(&bozo::SetCellName { name }).await.map(drop)
            }
            Act::AddHost(name) => {
                let name = text(name)?;
                connection.call(&bozo::AddCellHost { name }).await.map(drop)
            }
            Act::RemoveHost(name) => {
                let name = text(name)?;
                connection
                    .call(&bozo::DeleteCellHost { name })
                    .await
                    .map(drop)
            }
            Act::SetNoAuth(no_auth) => {
                let flag = i32::from(no_auth);
                connection
                    .call(&bozo::SetNoAuthFlag { flag })
                    .await
                    .map(drop)
            }
            Act::SetRestart(restart_type, time) => {
                let arguments = bozo::SetRestartTime {
                    restart_type,
                    time: time.to_wire(),
                };
                connection.call(&arguments).await.map(drop)
            }
            Act::SetRestricted(mode) => {
                let arguments = bozo::SetRestrictedMode { mode };
                connection.call(&arguments).await.map(drop)
            }
            Act::AddUser(name) => {
                let name = text(name)?;
                connection.call(&bozo::AddSUser { name }).await.map(drop)
            }
            Act::RemoveUser(name) => {
                let argument = text(name)?;
                match connection.call(&bozo::DeleteSUser { name: argument }).await {
                    Err(cause) if cause.code().to_plain() == AbortCode::ENOENT => {
                        return Err(Error::Usage(format!(
                            "failed to delete user '{name}', (no such user)"
                        )));
                    }
                    other => other.map(drop),
                }
            }
            Act::RemoveKey(kvno) => connection.call(&bozo::DeleteKey { kvno }).await.map(drop),
        };
        done.map_err(|cause| {
            let (what, form) = act.words();
            let error = self.failed(&what, cause, form);
            match act.inapplicable() {
                Some((code, reason)) => error.advise(code, reason),
                None => error,
            }
        })
    }

    async fn set_goal(
        &self,
        name: &str,
        status: i32,
    ) -> Result<std::result::Result<(), CallError>> {
        let instance = text(name)?;
        let arguments = bozo::SetStatus { instance, status };
        Ok(self.connection().call(&arguments).await.map(drop))
    }

    async fn set_goal_for_now(
        &self,
        name: &str,
        status: i32,
    ) -> Result<std::result::Result<(), CallError>> {
        let instance = text(name)?;
        let arguments = bozo::SetTStatus { instance, status };
        Ok(self.connection().call(&arguments).await.map(drop))
    }
}
