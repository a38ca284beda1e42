//! The overseer that this process is to its roles: what `bos` asks of one.
//!
//! The roles live and die with the process, so nothing can be installed, started or stopped one by one;
//! everything that looks is answered, and `administer` has what superusers may do.

mod administer;

use std::path::PathBuf;

use cellar_auth::Authority;
use cellar_auth::audit::Audit;
use cellar_client::Cell;
use cellar_rpc::{IncomingCall, LocalBoxFuture, Service};
use cellar_wire::AbortCode;
use cellar_wire::bozo::{self, *};
use cellar_wire::ids::AfsTime;
use cellar_wire::package::{Package, Procedure};

/// The number that asks GetInstanceParm for the notifier.
const NOTIFIER: i32 = 999;
/// `mask` of a [`NetKTime`]: never.
const NEVER: i32 = 0x10;
/// What ListSUsers answers past the last one.
const NO_MORE_USERS: AbortCode = AbortCode(1);

/// A role, as the overseer names it.
#[derive(Clone, Debug)]
pub(super) struct Instance {
    name: &'static str,
    kind: &'static str,
    description: &'static str,
    port: u16,
}

impl Instance {
    /// A role that is one process and answers on `port`; `description` is its auxiliary status.
    pub(super) fn new(name: &'static str, description: &'static str, port: u16) -> Self {
        Self::of_kind(name, "simple", description, port)
    }

    /// The same, with the type that `bos status -long` shows.
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
    /// Who is a superuser; has the keys and the list that superusers change.
    authority: Authority,
    /// Takes down what they do.
    audit: Audit,
    /// What they may read, by name.
    logs: Vec<(&'static str, PathBuf)>,
    /// The file whose date is the date of the keys.
    key_file: PathBuf,
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
            key_file,
        }
    }

    /// A log that superusers may read by that name.
    pub(super) fn with_log(mut self, name: &'static str, path: PathBuf) -> Self {
        self.logs.push((name, path));
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

    async fn answer(&self, call: &mut IncomingCall) -> Result<(), AbortCode> {
        match call.opcode().await? {
            EnumerateInstance::OPCODE => {
                let arguments: EnumerateInstance = call.arguments().await?;
                let instance = text(self.at(arguments.index)?.name);
                call.reply(&EnumerateInstanceReply { instance });
            }
            GetStatus::OPCODE => {
                let arguments: GetStatus = call.arguments().await?;
                let instance = self.instance(&arguments.instance)?;
                let description = text(instance.description);
                call.reply(&GetStatusReply {
                    status: GOAL_NORMAL,
                    description,
                });
            }
            GetInstanceInfo::OPCODE => {
                let arguments: GetInstanceInfo = call.arguments().await?;
                let instance = self.instance(&arguments.instance)?;
                let status = BozoStatus {
                    goal: GOAL_NORMAL,
                    file_goal: GOAL_NORMAL,
                    start_time: self.started.0 as i32,
                    starts: 1,
                    ..BozoStatus::default()
                };
                call.reply(&GetInstanceInfoReply {
                    bnode_type: text(instance.kind),
                    status,
                });
            }
            GetInstanceParm::OPCODE => {
                let arguments: GetInstanceParm = call.arguments().await?;
                let instance = self.instance(&arguments.instance)?;
                let parameter = match arguments.number {
                    0 => text(&format!("{} (UDP {})", self.command, instance.port)),
                    // There is none.
                    NOTIFIER => return Err(AbortCode::BZNOENT),
                    _ => return Err(AbortCode::BZDOM),
                };
                call.reply(&GetInstanceParmReply { parameter });
            }
            GetInstanceStrings::OPCODE => {
                let arguments: GetInstanceStrings = call.arguments().await?;
                self.instance(&arguments.instance)?;
                call.reply(&GetInstanceStringsReply {
                    error: text(""),
                    spare1: text(""),
                    spare2: text(""),
                    spare3: text(""),
                });
            }
            GetCellName::OPCODE => {
                let _: GetCellName = call.arguments().await?;
                call.reply(&GetCellNameReply {
                    name: text(self.cell.name.as_str()),
                });
            }
            GetCellHost::OPCODE => {
                let arguments: GetCellHost = call.arguments().await?;
                let host = self.cell.database_servers.get(arguments.index as usize);
                let host = host.ok_or(AbortCode::BZDOM)?;
                call.reply(&GetCellHostReply {
                    name: text(&host.to_string()),
                });
            }
            ListSUsers::OPCODE => {
                let arguments: ListSUsers = call.arguments().await?;
                let names = self.authority.superusers().list();
                let index = usize::try_from(arguments.index).map_err(|_| NO_MORE_USERS)?;
                let name = names.get(index);
                let name = text(name.ok_or(NO_MORE_USERS)?);
                call.reply(&ListSUsersReply { name });
            }
            GetDates::OPCODE => {
                // No program of ours lies where `bos install` would put one.
                let _: GetDates = call.arguments().await?;
                call.reply(&GetDatesReply {
                    new_time: 0,
                    bak_time: 0,
                    old_time: 0,
                });
            }
            GetRestartTime::OPCODE => {
                let arguments: GetRestartTime = call.arguments().await?;
                if !matches!(arguments.restart_type, RESTART_GENERAL | RESTART_BINARIES) {
                    return Err(AbortCode::BZDOM);
                }
                let time = NetKTime {
                    mask: NEVER,
                    ..NetKTime::default()
                };
                call.reply(&GetRestartTimeReply { time });
            }
            GetRestrictedMode::OPCODE => {
                // For good: what this mode forbids to everybody cannot be done here at all.
                let _: GetRestrictedMode = call.arguments().await?;
                call.reply(&GetRestrictedModeReply { mode: 1 });
            }
            opcode => return self.administer(call, opcode).await,
        }
        Ok(())
    }
}

/// Text for the wire; what is too long is cut.
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
        Box::pin(self.answer(call))
    }
}
