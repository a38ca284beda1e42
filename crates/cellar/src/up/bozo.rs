//! The overseer of the roles of this process: answers the calls of `bos`.
//!
//! The roles start and stop with the process, so they cannot be installed, started or stopped one
//! by one. A restart of any role restarts all ([`crate::restart`]). All calls that only read are
//! answered; `administer` has the calls of superusers.

mod administer;
mod audited;

use std::path::PathBuf;

use cellar_auth::Authority;
use cellar_auth::audit::Audit;
use cellar_client::Cell;
use cellar_rpc::{IncomingCall, LocalBoxFuture, Service};
use cellar_wire::AbortCode;
use cellar_wire::bozo::{self, *};
use cellar_wire::ids::AfsTime;
use cellar_wire::package::Package;
use cellar_wire::serve::{CallHandler, Handle};

use super::copies::Copier;
use crate::restart::Restart;

/// The parameter number of GetInstanceParm for the notifier.
const NOTIFIER: i32 = 999;
/// The value of `mask` in a [`NetKTime`] for "never".
const NEVER: i32 = 0x10;
/// The code of ListSUsers past the last user.
const NO_MORE_USERS: AbortCode = AbortCode(1);

/// A role, under its name for the overseer.
#[derive(Clone, Debug)]
pub(super) struct Instance {
    name: &'static str,
    kind: &'static str,
    description: &'static str,
    port: u16,
}

impl Instance {
    /// A role with one process that answers on `port`; `description` is its auxiliary status.
    pub(super) fn new(name: &'static str, description: &'static str, port: u16) -> Self {
        Self::of_kind(name, "simple", description, port)
    }

    /// Like [`Self::new`], with the type that `bos status -long` shows.
    pub(super) fn of_kind(
        name: &'static str,
        kind: &'static str,
        description: &'static str,
        port: u16,
    ) -> Self {
        Self {
            name,
            kind,
            description,
            port,
        }
    }
}

/// The overseer.
pub(super) struct Overseer {
    cell: Cell,
    instances: Vec<Instance>,
    started: AfsTime,
    command: String,
    /// Identifies superusers; holds the keys and the list of superusers.
    authority: Authority,
    /// Records the acts of superusers.
    audit: Audit,
    /// The logs that superusers may read, by name.
    logs: Vec<(&'static str, PathBuf)>,
    /// Makes copies of the databases, if they are in a file of this process.
    copier: Option<Copier>,
    /// The file whose date is the date of the keys.
    key_file: PathBuf,
    /// Receives requests for a restart.
    restart: Restart,
}

impl Overseer {
    pub(super) fn new(
        cell: Cell,
        instances: Vec<Instance>,
        started: AfsTime,
        authority: Authority,
        audit: Audit,
        key_file: PathBuf,
    ) -> Self {
        let command = std::env::args().collect::<Vec<_>>().join(" ");
        Self {
            cell,
            instances,
            started,
            command,
            authority,
            audit,
            logs: Vec::new(),
            copier: None,
            key_file,
            restart: Restart::default(),
        }
    }

    /// Adds a log that superusers may read under this name.
    pub(super) fn with_log(mut self, name: &'static str, path: PathBuf) -> Self {
        self.logs.push((name, path));
        self
    }

    /// Lets superusers export the databases.
    pub(super) fn exporting(mut self, copier: Option<Copier>) -> Self {
        self.copier = copier;
        self
    }

    /// Sets the receiver of requests for a restart.
    pub(super) fn restarted_by(mut self, restart: Restart) -> Self {
        self.restart = restart;
        self
    }

    fn instance(&self, name: &BozoString) -> Result<&Instance, AbortCode> {
        let found = self
            .instances
            .iter()
            .find(|i| i.name.as_bytes() == name.as_bytes());
        found.ok_or(AbortCode::BZNOENT)
    }

    fn at(&self, index: i32) -> Result<&Instance, AbortCode> {
        let index = usize::try_from(index).map_err(|_| AbortCode::BZDOM)?;
        self.instances.get(index).ok_or(AbortCode::BZDOM)
    }
}

impl CallHandler for Overseer {
    type Refusal = AbortCode;

    fn failed(code: AbortCode) -> AbortCode {
        code
    }
}

impl Handle<EnumerateInstance, IncomingCall> for Overseer {
    async fn handle(
        &self,
        _: &IncomingCall,
        arguments: EnumerateInstance,
    ) -> Result<EnumerateInstanceReply, AbortCode> {
        let instance = text(self.at(arguments.index)?.name);
        Ok(EnumerateInstanceReply { instance })
    }
}

impl Handle<GetStatus, IncomingCall> for Overseer {
    async fn handle(
        &self,
        _: &IncomingCall,
        arguments: GetStatus,
    ) -> Result<GetStatusReply, AbortCode> {
        let instance = self.instance(&arguments.instance)?;
        let description = text(instance.description);
        Ok(GetStatusReply {
            status: GOAL_NORMAL,
            description,
        })
    }
}

impl Handle<GetInstanceInfo, IncomingCall> for Overseer {
    async fn handle(
        &self,
        _: &IncomingCall,
        arguments: GetInstanceInfo,
    ) -> Result<GetInstanceInfoReply, AbortCode> {
        let instance = self.instance(&arguments.instance)?;
        let status = BozoStatus {
            goal: GOAL_NORMAL,
            file_goal: GOAL_NORMAL,
            start_time: self.started.0 as i32,
            starts: 1,
            ..BozoStatus::default()
        };
        Ok(GetInstanceInfoReply {
            bnode_type: text(instance.kind),
            status,
        })
    }
}

impl Handle<GetInstanceParm, IncomingCall> for Overseer {
    async fn handle(
        &self,
        _: &IncomingCall,
        arguments: GetInstanceParm,
    ) -> Result<GetInstanceParmReply, AbortCode> {
        let instance = self.instance(&arguments.instance)?;
        let parameter = match arguments.number {
            0 => text(&format!("{} (UDP {})", self.command, instance.port)),
            // There is no notifier.
            NOTIFIER => return Err(AbortCode::BZNOENT),
            _ => return Err(AbortCode::BZDOM),
        };
        Ok(GetInstanceParmReply { parameter })
    }
}

impl Handle<GetInstanceStrings, IncomingCall> for Overseer {
    async fn handle(
        &self,
        _: &IncomingCall,
        arguments: GetInstanceStrings,
    ) -> Result<GetInstanceStringsReply, AbortCode> {
        self.instance(&arguments.instance)?;
        Ok(GetInstanceStringsReply {
            error: text(""),
            spare1: text(""),
            spare2: text(""),
            spare3: text(""),
        })
    }
}

impl Handle<GetCellName, IncomingCall> for Overseer {
    async fn handle(
        &self,
        _: &IncomingCall,
        _: GetCellName,
    ) -> Result<GetCellNameReply, AbortCode> {
        Ok(GetCellNameReply {
            name: text(self.cell.name.as_str()),
        })
    }
}

impl Handle<GetCellHost, IncomingCall> for Overseer {
    async fn handle(
        &self,
        _: &IncomingCall,
        arguments: GetCellHost,
    ) -> Result<GetCellHostReply, AbortCode> {
        let host = self.cell.database_servers.get(arguments.index as usize);
        let host = host.ok_or(AbortCode::BZDOM)?;
        Ok(GetCellHostReply {
            name: text(&host.to_string()),
        })
    }
}

impl Handle<ListSUsers, IncomingCall> for Overseer {
    async fn handle(
        &self,
        _: &IncomingCall,
        arguments: ListSUsers,
    ) -> Result<ListSUsersReply, AbortCode> {
        let names = self.authority.superusers().list();
        let index = usize::try_from(arguments.index).map_err(|_| NO_MORE_USERS)?;
        let name = names.get(index);
        let name = text(name.ok_or(NO_MORE_USERS)?);
        Ok(ListSUsersReply { name })
    }
}

impl Handle<GetDates, IncomingCall> for Overseer {
    async fn handle(&self, _: &IncomingCall, _: GetDates) -> Result<GetDatesReply, AbortCode> {
        // No program of ours is at the paths of `bos install`.
        Ok(GetDatesReply {
            new_time: 0,
            bak_time: 0,
            old_time: 0,
        })
    }
}

impl Handle<GetRestartTime, IncomingCall> for Overseer {
    async fn handle(
        &self,
        _: &IncomingCall,
        arguments: GetRestartTime,
    ) -> Result<GetRestartTimeReply, AbortCode> {
        if !matches!(arguments.restart_type, RESTART_GENERAL | RESTART_BINARIES) {
            return Err(AbortCode::BZDOM);
        }
        let time = NetKTime {
            mask: NEVER,
            ..NetKTime::default()
        };
        Ok(GetRestartTimeReply { time })
    }
}

impl Handle<GetRestrictedMode, IncomingCall> for Overseer {
    async fn handle(
        &self,
        _: &IncomingCall,
        _: GetRestrictedMode,
    ) -> Result<GetRestrictedModeReply, AbortCode> {
        // Always restricted: the operations that this mode forbids are not possible here at
        // all.
        Ok(GetRestrictedModeReply { mode: 1 })
    }
}

/// Text for the protocol, cut if it is too long.
fn text(text: &str) -> BozoString {
    let end = (0..=text.len().min(255))
        .rev()
        .find(|end| text.is_char_boundary(*end));
    BozoString::try_from(&text[..end.unwrap_or(0)]).unwrap_or_default()
}

impl Service for Overseer {
    fn package(&self) -> &'static Package {
        &bozo::PACKAGE
    }

    fn call<'a>(&'a self, call: &'a mut IncomingCall) -> LocalBoxFuture<'a, Result<(), AbortCode>> {
        Box::pin(async move { bozo::serve(self, call.opcode().await?, call).await })
    }
}
