//! Server processes of a machine, and its superusers: the operations of `bos`.

mod act;
mod export;
mod log;
mod restart_time;

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};

use bytes::Bytes;
use cellar_client::{Cell, Client};
use cellar_rpc::{CallError, Connection};
use cellar_wire::AbortCode;
use cellar_wire::bozo;
use cellar_wire::ids::AfsTime;
use serde::Serialize;

pub use act::{Act, COMMANDS_MAX};
pub use restart_time::RestartTime;

use crate::date::ctime;
use crate::error::{Error, Form, Result};

/// The most instances, command lines or hosts to ask for, in case a server never says "end".
const ITEMS_MAX: i32 = 1000;

/// The parameter number of an instance's notifier.
const NOTIFIER: i32 = 999;

/// The code of ListSUsers for an index past the last user.
const NO_MORE_USERS: AbortCode = AbortCode(1);

/// A server process, or a group of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Instance {
    /// Its name.
    pub name: String,
    /// `simple`, `cron`, `fs`, `dafs`.
    pub r#type: String,
    /// Current state: 0 shut down, 1 running, 2 shutting down, 3 starting up; in JSON in words.
    #[serde(serialize_with = "state_name")]
    pub state: i32,
    /// The state that the configuration file requires.
    #[serde(serialize_with = "state_name")]
    pub file_goal: i32,
    /// The state that the overseer currently aims for.
    #[serde(serialize_with = "state_name")]
    pub goal: i32,
    /// Additional state in words.
    pub auxiliary: String,
    /// Time of the last start.
    #[serde(serialize_with = "crate::json::time")]
    pub started: AfsTime,
    /// Number of starts.
    pub starts: i32,
    /// Time of the last exit, 0 for never.
    #[serde(serialize_with = "crate::json::time")]
    pub ended: AfsTime,
    /// The last exit that the overseer did not ask for; none if there was none.
    pub last_error: Option<LastError>,
    /// `FLAG_*`; in JSON their names.
    #[serde(serialize_with = "flag_names")]
    pub flags: i32,
    /// Its command lines.
    pub commands: Vec<String>,
    /// The program that the overseer runs when the instance ends.
    pub notifier: Option<String>,
}

fn state_name<S: serde::Serializer>(state: &i32, s: S) -> std::result::Result<S::Ok, S::Error> {
    s.serialize_str(match *state {
        bozo::GOAL_SHUTDOWN => "shut_down",
        bozo::GOAL_NORMAL => "running",
        bozo::GOAL_SHUTTING_DOWN => "shutting_down",
        _ => "starting_up",
    })
}

fn flag_names<S: serde::Serializer>(flags: &i32, s: S) -> std::result::Result<S::Ok, S::Error> {
    const NAMES: [(u32, &str); 3] = [
        (bozo::FLAG_HAS_CORE as u32, "has_core"),
        (bozo::FLAG_ERROR_STOP as u32, "stopped_for_errors"),
        (bozo::FLAG_BAD_DIR_ACCESS as u32, "bad_directory_access"),
    ];
    crate::json::bits(*flags as u32, &NAMES, s)
}

/// An exit of an instance that the overseer did not ask for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LastError {
    /// Time of the exit.
    #[serde(serialize_with = "crate::json::time")]
    pub ended: AfsTime,
    /// The process that exited; empty if the overseer does not say.
    pub process: String,
    /// The exit status.
    pub code: i32,
    /// The signal that ended it, 0 for none.
    pub signal: i32,
}

/// The signal that asks a process to end.
const SIGTERM: i32 = 15;

impl LastError {
    fn line(&self) -> String {
        let by = match self.process.as_str() {
            "" => String::new(),
            process => format!("by {process}, "),
        };
        let how = match self.signal {
            0 => format!("by exiting with code {}", self.code),
            SIGTERM => "due to shutdown request".to_owned(),
            signal => format!("due to signal {signal}"),
        };
        format!("    Last error exit at {}, {by}{how}\n", ctime(self.ended))
    }
}

impl Instance {
    /// As `bos status` prints it.
    pub fn status(&self, long: bool) -> String {
        let mut text = format!("Instance {}, ", self.name);
        if long {
            let _ = write!(text, "(type is {}) ", self.r#type);
        }
        match (self.file_goal, self.goal) {
            (0, 0) => text.push_str("disabled, "),
            (0, _) => text.push_str("temporarily enabled, "),
            (_, 0) => text.push_str("temporarily disabled, "),
            _ => {}
        }
        if self.flags & bozo::FLAG_ERROR_STOP != 0 {
            text.push_str("stopped for too many errors, ");
        }
        if self.flags & bozo::FLAG_HAS_CORE != 0 {
            text.push_str("has core file, ");
        }
        text.push_str(match self.state {
            bozo::GOAL_SHUTDOWN => "currently shutdown.\n",
            bozo::GOAL_NORMAL => "currently running normally.\n",
            bozo::GOAL_SHUTTING_DOWN => "currently shutting down.\n",
            _ => "currently starting up.\n",
        });
        if !self.auxiliary.is_empty() {
            let _ = writeln!(text, "    Auxiliary status is: {}.", self.auxiliary);
        }
        if long {
            let _ = writeln!(
                text,
                "    Process last started at {} ({} proc starts)",
                ctime(self.started),
                self.starts
            );
            if self.ended.0 != 0 {
                let _ = writeln!(text, "    Last exit at {}", ctime(self.ended));
            }
            if let Some(error) = &self.last_error {
                text.push_str(&error.line());
            }
            for (index, command) in self.commands.iter().enumerate() {
                let _ = writeln!(text, "    Command {} is '{command}'", index + 1);
            }
            if let Some(notifier) = &self.notifier {
                let _ = writeln!(text, "    Notifier  is '{notifier}'");
            }
            text.push('\n');
        }
        text
    }
}

/// A version of the cell's key, as the overseer shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Key {
    /// The version.
    pub kvno: i32,
    /// A checksum of the key; 0 if the server shows none.
    pub checksum: u32,
    /// Time of the last change of the key file; 0 if the server does not say.
    #[serde(serialize_with = "crate::json::time")]
    pub changed: AfsTime,
}

impl Key {
    /// As `bos listkeys` prints it.
    pub fn line(&self) -> String {
        match self.checksum {
            0 => format!("key version is {}\n", self.kvno),
            checksum => format!("key {} has cksum {checksum}\n", self.kvno),
        }
    }

    /// Time of the last change of the keys, in the date format of `bos listkeys`.
    pub fn changed_on(&self) -> String {
        ctime(self.changed)
    }
}

/// Converts text for the wire.
fn text(text: &str) -> Result<bozo::BozoString> {
    bozo::BozoString::try_from(text).map_err(|_| Error::Usage(format!("{text}: too long")))
}

/// The overseer of one machine.
#[derive(Clone, Copy)]
pub struct Overseer<'a> {
    client: &'a Client,
    cell: &'a Cell,
    server: IpAddr,
}

impl<'a> Overseer<'a> {
    /// The overseer of `server`.
    pub fn new(client: &'a Client, cell: &'a Cell, server: IpAddr) -> Self {
        Self {
            client,
            cell,
            server,
        }
    }

    fn connection(&self) -> Connection {
        let peer = SocketAddr::new(self.server, self.cell.ports.overseer);
        let servers = self.client.servers();
        servers.connection(&self.cell.name, peer, &bozo::PACKAGE)
    }

    /// The error of a failed call. If the overseer does not answer, the error names its address.
    fn failed(&self, what: &str, cause: CallError, form: Form) -> Error {
        match cause {
            CallError::Aborted(_) => Error::formed(what, cause, form),
            _ => Error::formed(format!("{what} on {}", self.server), cause, form),
        }
    }

    /// Makes a call; `what` begins the message of a refusal.
    async fn call<P: cellar_wire::Procedure>(&self, arguments: &P, what: &str) -> Result<P::Reply> {
        let answer = self.connection().call(arguments).await;
        answer.map_err(|cause| self.failed(what, cause, Form::Brackets))
    }

    /// The names of the instances.
    ///
    /// # Errors
    /// The overseer does not answer.
    pub async fn instances(&self) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for index in 0..ITEMS_MAX {
            let what = "failed to contact host's bosserver";
            match self.call(&bozo::EnumerateInstance { index }, what).await {
                Ok(reply) => names.push(reply.instance.to_string()),
                Err(error) if error.code() == Some(AbortCode::BZDOM) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(names)
    }

    /// Information about one instance.
    ///
    /// # Errors
    /// There is none of that name, or the overseer does not answer.
    pub async fn instance(&self, name: &str, long: bool) -> Result<Instance> {
        let instance = text(name)?;
        let arguments = bozo::GetInstanceInfo {
            instance: instance.clone(),
        };
        let what = format!("failed to get instance info for '{name}'");
        let info = self.call(&arguments, &what).await?;
        let arguments = bozo::GetStatus {
            instance: instance.clone(),
        };
        let what = format!("failed to get status for instance '{name}'");
        let status = self.call(&arguments, &what).await?;
        let time = |seconds: i32| AfsTime(seconds.max(0) as u32);
        let (mut commands, mut notifier, mut last_error) = (Vec::new(), None, None);
        if long {
            for number in 0..ITEMS_MAX {
                match self.parameter(&instance, number).await {
                    Some(command) => commands.push(command),
                    None => break,
                }
            }
            notifier = self.parameter(&instance, NOTIFIER).await;
            if info.status.last_error_exit != 0 {
                let arguments = bozo::GetInstanceStrings { instance };
                let strings = self.connection().call(&arguments).await;
                last_error = Some(LastError {
                    ended: time(info.status.last_error_exit),
                    process: strings.map_or(String::new(), |s| s.error.to_string()),
                    code: info.status.error_code,
                    signal: info.status.error_signal,
                });
            }
        }
        Ok(Instance {
            name: name.to_owned(),
            r#type: info.bnode_type.to_string(),
            state: status.status,
            file_goal: info.status.file_goal,
            goal: info.status.goal,
            auxiliary: status.description.to_string(),
            started: time(info.status.start_time),
            starts: info.status.starts,
            ended: time(info.status.last_any_exit),
            last_error,
            flags: info.status.flags,
            commands,
            notifier,
        })
    }

    /// A command line of an instance, or with [`NOTIFIER`] its notifier; none if the server
    /// refuses.
    async fn parameter(&self, instance: &bozo::BozoString, number: i32) -> Option<String> {
        let arguments = bozo::GetInstanceParm {
            instance: instance.clone(),
            number,
        };
        let reply = self.connection().call(&arguments).await.ok()?;
        Some(reply.parameter.to_string())
    }

    /// Whether an instance should run now; none if there is no such instance.
    ///
    /// # Errors
    /// The overseer does not answer.
    pub async fn is_to_run(&self, name: &str) -> Result<Option<bool>> {
        let instance = text(name)?;
        let what = format!("failed to get instance info for '{name}'");
        match self.call(&bozo::GetInstanceInfo { instance }, &what).await {
            Ok(info) => Ok(Some(info.status.goal != bozo::GOAL_SHUTDOWN)),
            Err(error) if error.code() == Some(AbortCode::BZNOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The cell's name and its database servers.
    ///
    /// # Errors
    /// The overseer does not answer.
    pub async fn hosts(&self) -> Result<(String, Vec<String>)> {
        let what = "failed to get cell name";
        let name = self.call(&bozo::GetCellName {}, what).await?.name;
        let name = name.to_string();
        let mut hosts = Vec::new();
        for index in 0..ITEMS_MAX as u32 {
            let what = format!("failed to get cell host {index}");
            match self.call(&bozo::GetCellHost { index }, &what).await {
                Ok(reply) => hosts.push(reply.name.to_string()),
                Err(error) if error.code() == Some(AbortCode::BZDOM) => break,
                Err(error) => return Err(error),
            }
        }
        Ok((name, hosts))
    }

    /// The superusers.
    ///
    /// # Errors
    /// The overseer does not answer.
    pub async fn superusers(&self) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for index in 0..ITEMS_MAX {
            let what = "failed to retrieve super-user list";
            match self.call(&bozo::ListSUsers { index }, what).await {
                Ok(reply) => names.push(reply.name.to_string()),
                Err(error) if error.code() == Some(NO_MORE_USERS) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(names)
    }

    /// The versions of the cell's keys, and the times of their changes if the server gives them.
    ///
    /// # Errors
    /// The caller has no permission.
    pub async fn keys(&self) -> Result<Vec<Key>> {
        let mut keys = Vec::new();
        for index in 0..ITEMS_MAX {
            let answer = self.connection().call(&bozo::ListKeys { index }).await;
            let what = " error encountered while listing keys";
            match answer.map_err(|cause| self.failed(what, cause, Form::Before)) {
                Ok(reply) => keys.push(Key {
                    kvno: reply.kvno,
                    checksum: reply.key_info.key_checksum,
                    changed: AfsTime(reply.key_info.modified_seconds.max(0) as u32),
                }),
                Err(error) if error.code() == Some(AbortCode::BZDOM) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(keys)
    }

    /// The dates of a program and of its two earlier versions; 0 for a missing version.
    ///
    /// # Errors
    /// The overseer does not answer.
    pub async fn dates(&self, path: &str) -> Result<[AfsTime; 3]> {
        let name = path.rsplit('/').next().unwrap_or(path);
        let what = format!("failed to check date on {name}");
        let arguments = bozo::GetDates { path: text(path)? };
        let reply = self.call(&arguments, &what).await?;
        let times = [reply.new_time, reply.bak_time, reply.old_time];
        Ok(times.map(|time| AfsTime(time.max(0) as u32)))
    }

    /// The time at which the overseer restarts all processes (`RESTART_*` says which of its times).
    ///
    /// # Errors
    /// The overseer does not answer.
    pub async fn restart_time(&self, restart_type: i32) -> Result<RestartTime> {
        let what = "failed to retrieve restart information";
        let arguments = bozo::GetRestartTime { restart_type };
        let reply = self.call(&arguments, what).await?;
        Ok(RestartTime::from_wire(&reply.time))
    }

    /// Whether the overseer is in restricted mode, in which it neither installs nor runs programs.
    ///
    /// # Errors
    /// The overseer does not answer.
    pub async fn is_restricted(&self) -> Result<bool> {
        let what = "failed to get restricted mode";
        let reply = self.call(&bozo::GetRestrictedMode {}, what).await?;
        Ok(reply.mode != 0)
    }

    /// Installs a program on the server; `path` is its path there.
    ///
    /// # Errors
    /// The caller has no permission, or the overseer cannot write there.
    pub async fn install(
        &self,
        name: &str,
        path: &str,
        mode: u32,
        date: AfsTime,
        contents: Vec<u8>,
    ) -> Result<()> {
        let what = format!("failed to install {name}");
        let refused = |cause| self.failed(&what, cause, Form::Brackets);
        let size = i32::try_from(contents.len())
            .map_err(|_| Error::Usage(format!("{name}: an overseer takes less than 2 GiB")))?;
        let arguments = bozo::Install {
            path: text(path)?,
            size,
            flags: mode as i32,
            date: date.0 as i32,
        };
        let mut call = self.connection().open(&arguments).await.map_err(refused)?;
        // After a refusal the results say why. The error of a write that the server did not wait
        // for says less.
        let _written = call.write(Bytes::from(contents)).await;
        call.finish();
        call.results::<bozo::InstallReply>()
            .await
            .map(drop)
            .map_err(refused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected texts: OpenAFS 1.8.9's `bos status -long`.
    #[test]
    fn prints_as_bos_does() {
        let instance = Instance {
            name: "dafs".to_owned(),
            r#type: "dafs".to_owned(),
            state: 1,
            file_goal: 1,
            goal: 1,
            auxiliary: "file server running".to_owned(),
            started: AfsTime(1795257673),
            starts: 3,
            ended: AfsTime(0),
            last_error: None,
            flags: 0,
            commands: vec!["/usr/lib/openafs/dafileserver -L".to_owned()],
            notifier: None,
        };
        assert_eq!(
            instance.status(false),
            "Instance dafs, currently running normally.\n    \
             Auxiliary status is: file server running.\n"
        );
        let long = instance.status(true);
        assert!(long.starts_with("Instance dafs, (type is dafs) currently running normally.\n"));
        assert!(
            long.ends_with(
                "(3 proc starts)\n    Command 1 is '/usr/lib/openafs/dafileserver -L'\n\n"
            )
        );
        let failed = Instance {
            last_error: Some(LastError {
                ended: instance.started,
                process: "file".to_owned(),
                code: 0,
                signal: 6,
            }),
            notifier: Some("/bin/tell".to_owned()),
            ..instance
        };
        let long = failed.status(true);
        assert!(long.contains("\n    Last error exit at "), "{long}");
        assert!(long.contains(", by file, due to signal 6\n"), "{long}");
        assert!(
            long.ends_with("'\n    Notifier  is '/bin/tell'\n\n"),
            "{long}"
        );
    }
}
