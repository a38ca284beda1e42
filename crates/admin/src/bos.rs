//! What runs on a server machine, and who may do everything there: the operations of `bos`.

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};

use cellar_client::{Cell, Client};
use cellar_rpc::{CallError, Connection};
use cellar_wire::AbortCode;
use cellar_wire::bozo;
use cellar_wire::ids::AfsTime;
use serde::Serialize;

use crate::date::ctime;
use crate::error::{Error, Result};

/// Instances, command lines or hosts asked for: bounds a server that never says "end".
const ITEMS_MAX: i32 = 1000;

/// Bytes of a log that are taken.
const LOG_MAX: usize = 1 << 30;

/// What ListSUsers answers past the last one.
const NO_MORE_USERS: AbortCode = AbortCode(1);

/// A server process, or a group of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Instance {
    /// Its name.
    pub name: String,
    /// `simple`, `cron`, `fs`, `dafs`.
    pub r#type: String,
    /// What it does: 0 shut down, 1 running, 2 shutting down, 3 starting up.
    pub state: i32,
    /// What the configuration says it should do.
    pub file_goal: i32,
    /// What it should do now.
    pub goal: i32,
    /// More in words.
    pub auxiliary: String,
    /// When it was last started.
    #[serde(serialize_with = "crate::json::time")]
    pub started: AfsTime,
    /// How often.
    pub starts: i32,
    /// When it last ended, 0 for never.
    #[serde(serialize_with = "crate::json::time")]
    pub ended: AfsTime,
    /// `FLAG_*`.
    pub flags: i32,
    /// Command lines.
    pub commands: Vec<String>,
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
            for (index, command) in self.commands.iter().enumerate() {
                let _ = writeln!(text, "    Command {} is '{command}'", index + 1);
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
    /// A checksum of the key; 0 where the server shows none.
    pub checksum: u32,
    /// When the key file was changed; 0 where the server does not say.
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

    /// When the keys were changed, as `bos listkeys` writes dates.
    pub fn changed_on(&self) -> String {
        ctime(self.changed)
    }
}

/// Text for the wire.
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
    /// That of `server`.
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

    fn refused(&self, cause: CallError) -> Error {
        let what = format!("the overseer of {}", self.server);
        Error::refused(what, cause)
    }

    async fn call<P: cellar_wire::Procedure>(&self, arguments: &P) -> Result<P::Reply> {
        let answer = self.connection().call(arguments).await;
        answer.map_err(|cause| self.refused(cause))
    }

    /// The names of its instances.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn instances(&self) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for index in 0..ITEMS_MAX {
            match self.call(&bozo::EnumerateInstance { index }).await {
                Ok(reply) => names.push(reply.instance.to_string()),
                Err(error) if error.code() == Some(AbortCode::BZDOM) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(names)
    }

    /// One instance.
    ///
    /// # Errors
    /// There is none of that name, or it does not answer.
    pub async fn instance(&self, name: &str, long: bool) -> Result<Instance> {
        let instance = text(name)?;
        let status = self
            .call(&bozo::GetStatus {
                instance: instance.clone(),
            })
            .await?;
        let info = self
            .call(&bozo::GetInstanceInfo {
                instance: instance.clone(),
            })
            .await?;
        let mut commands = Vec::new();
        for number in 0..ITEMS_MAX {
            if !long {
                break;
            }
            let arguments = bozo::GetInstanceParm {
                instance: instance.clone(),
                number,
            };
            match self.call(&arguments).await {
                Ok(reply) => commands.push(reply.parameter.to_string()),
                Err(error) if error.code() == Some(AbortCode::BZDOM) => break,
                Err(error) => return Err(error),
            }
        }
        let time = |seconds: i32| AfsTime(seconds.max(0) as u32);
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
            flags: info.status.flags,
            commands,
        })
    }

    /// The cell's name and its database servers.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn hosts(&self) -> Result<(String, Vec<String>)> {
        let name = self.call(&bozo::GetCellName {}).await?.name.to_string();
        let mut hosts = Vec::new();
        for index in 0..ITEMS_MAX as u32 {
            match self.call(&bozo::GetCellHost { index }).await {
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
    /// It does not answer.
    pub async fn superusers(&self) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for index in 0..ITEMS_MAX {
            match self.call(&bozo::ListSUsers { index }).await {
                Ok(reply) => names.push(reply.name.to_string()),
                Err(error) if error.code() == Some(NO_MORE_USERS) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(names)
    }

    /// Adds a superuser.
    ///
    /// # Errors
    /// It is one already, or the caller may not.
    pub async fn add_superuser(&self, name: &str) -> Result<()> {
        let name = text(name)?;
        self.call(&bozo::AddSUser { name }).await.map(drop)
    }

    /// Takes a superuser off the list.
    ///
    /// # Errors
    /// It is none, or the caller may not.
    pub async fn remove_superuser(&self, name: &str) -> Result<()> {
        let name = text(name)?;
        self.call(&bozo::DeleteSUser { name }).await.map(drop)
    }

    /// The versions of the cell's keys, and when they were changed if the server says so.
    ///
    /// # Errors
    /// The caller may not.
    pub async fn keys(&self) -> Result<Vec<Key>> {
        let mut keys = Vec::new();
        for index in 0..ITEMS_MAX {
            match self.call(&bozo::ListKeys { index }).await {
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

    /// Removes the keys of a version: tickets sealed with them are worth nothing from then on.
    ///
    /// # Errors
    /// There is none, or the caller may not.
    pub async fn remove_key(&self, kvno: i32) -> Result<()> {
        self.call(&bozo::DeleteKey { kvno }).await.map(drop)
    }

    /// A log, without its end of transfer.
    ///
    /// # Errors
    /// There is no such log, or the caller may not.
    pub async fn log(&self, name: &str) -> Result<Vec<u8>> {
        let name = text(name)?;
        let refused = |cause| self.refused(cause);
        let mut call = self
            .connection()
            .open(&bozo::GetLog { name })
            .await
            .map_err(refused)?;
        let mut log = Vec::new();
        while log.len() < LOG_MAX {
            match call.read_chunk().await.map_err(refused)? {
                Some(bytes) => log.extend_from_slice(&bytes),
                None => break,
            }
        }
        if log.last() == Some(&0) {
            log.pop();
        }
        Ok(log)
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
            flags: 0,
            commands: vec!["/usr/lib/openafs/dafileserver -L".to_owned()],
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
    }
}
