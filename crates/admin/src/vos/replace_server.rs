//! Taking a file server out of the VLDB, and giving its place to another machine.
//!
//! The VLDB names the sites of volumes by server, and a server by UUID and addresses. So one change
//! of a server's entry carries all its volumes to another machine:
//!
//! * `Readdress`: the new machine is not in the VLDB, and will start with the identity of the old
//!   one. The server gets the new address under its UUID (`vos setaddrs`), or without a UUID by
//!   `vos changeaddr`.
//! * `Adopt`: the new machine has registered with an identity of its own, and has no volumes in the
//!   VLDB. Its entry is removed. The old server gets its addresses, then its UUID.
//!
//! `Adopt` uses the rule by which a server that lost its identity keeps its volumes: a registration
//! with a new UUID and the addresses of one known server takes over that entry. If it stops between
//! its calls, the same command or the next start of the new machine finishes it.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use serde::Serialize;

use super::{Location, Remaining, ServerAddresses, Volumes, site_flags};
use crate::error::{Error, Result};

/// The longest time that a server has to say whether it is there.
const PATIENCE: Duration = Duration::from_secs(5);
/// The most names in an error.
const NAMED_MAX: usize = 5;

/// The change of the VLDB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ReplaceAction {
    /// The server gets the new address and keeps its UUID.
    Readdress,
    /// The new machine, which has registered, gets the entry of the old one.
    Adopt,
}

/// A replacement before it is made.
#[derive(Clone, Debug, Serialize)]
pub struct ReplacePlan {
    /// The server as the VLDB knows it.
    pub old: ServerAddresses,
    /// The addresses that it gets.
    pub addresses: Vec<Ipv4Addr>,
    /// The entry of the new machine, if it has registered on its own.
    pub registered: Option<ServerAddresses>,
    /// The change.
    pub action: ReplaceAction,
    /// The number of volume groups with a site there.
    pub groups: usize,
    /// The new machine answers, so that its volumes could be compared.
    pub new_answers: bool,
    /// Volumes that the VLDB names on the server and that the new machine does not have.
    pub missing: Vec<Remaining>,
}

impl Volumes<'_> {
    /// Removes a server without volumes from the VLDB.
    ///
    /// # Errors
    /// The VLDB names volumes on it, or the caller has no permission.
    pub async fn remove_server(&self, server: &ServerAddresses) -> Result<()> {
        self.check_unused(server).await?;
        for address in &server.addresses {
            if let IpAddr::V4(address) = address {
                // One address stands for the whole entry.
                return self.remove_address(*address).await;
            }
        }
        Err(Error::Usage("the server has no IPv4 address".to_owned()))
    }

    /// Refuses a server on which the VLDB names volumes.
    ///
    /// # Errors
    /// It names some; the error lists the first.
    pub async fn check_unused(&self, server: &ServerAddresses) -> Result<()> {
        let entries = self.entries_at(server).await?;
        if entries.is_empty() {
            return Ok(());
        }
        let names = entries.iter().take(NAMED_MAX);
        let names: Vec<_> = names.map(|entry| entry.name.as_str()).collect();
        let more = match entries.len() - names.len() {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let address = server.addresses.first();
        let address = address.map(ToString::to_string).unwrap_or_default();
        Err(Error::Usage(format!(
            "the VLDB names volumes on {address}: {}{more}. 'cellar server drain {address}' moves them away",
            names.join(", ")
        )))
    }

    /// Plans that the machine at `new` takes the place of the server at `old`.
    ///
    /// # Errors
    /// The VLDB does not have the old server, the old server still answers, or the VLDB names
    /// volumes on the new one.
    pub async fn plan_replacement(&self, old: Ipv4Addr, new: Ipv4Addr) -> Result<ReplacePlan> {
        let servers = self.addresses().await?;
        let with = |address: Ipv4Addr| {
            let found = servers
                .iter()
                .find(|server| server.addresses.contains(&address.into()));
            found.cloned()
        };
        let registered = with(new);
        let Some(server) = with(old) else {
            let hint = match registered {
                Some(_) => format!(
                    "; it has {new}: a machine that started with the identity of {old} has its place already"
                ),
                None => "; 'cellar vos listaddrs' lists all".to_owned(),
            };
            return Err(Error::Usage(format!(
                "the VLDB has no file server {old}{hint}"
            )));
        };
        if old == new {
            return Err(Error::Usage(format!("{old} cannot replace itself")));
        }
        if self.answers(old).await {
            return Err(Error::Usage(format!(
                "the file server {old} still answers. Stop it first: one server cannot be two machines"
            )));
        }
        let registered = registered.filter(|other| *other != server);
        if let Some(other) = &registered {
            self.check_unused(other).await.map_err(|error| {
                Error::Usage(format!(
                    "{new} is a server of its own, and cannot take the place of {old}: {error}"
                ))
            })?;
        }
        let mut addresses: Vec<Ipv4Addr> = match &registered {
            Some(other) => v4(other),
            None => v4(&server),
        };
        addresses.retain(|address| *address != old);
        if !addresses.contains(&new) {
            addresses.push(new);
        }
        let action = match registered {
            Some(_) => ReplaceAction::Adopt,
            None => ReplaceAction::Readdress,
        };
        let mut plan = ReplacePlan {
            old: server,
            addresses,
            registered,
            action,
            groups: 0,
            new_answers: self.answers(new).await,
            missing: Vec::new(),
        };
        self.compare(&mut plan, new).await?;
        Ok(plan)
    }

    /// Compares the volumes of the new machine with the VLDB.
    async fn compare(&self, plan: &mut ReplacePlan, new: Ipv4Addr) -> Result<()> {
        let entries = self.entries_at(&plan.old).await?;
        plan.groups = entries.len();
        if !plan.new_answers {
            return Ok(());
        }
        let mut held = Vec::new();
        for partition in self.partitions(new.into()).await? {
            let volumes = self.volumes_on(new.into(), partition, false).await?;
            held.extend(volumes.into_iter().map(|info| (partition, info.id)));
        }
        for entry in &entries {
            for site in &entry.sites {
                let (volume, suffix) = match site.flags {
                    flags if flags & site_flags::DONT_USE != 0 => continue,
                    flags if flags & site_flags::READ_ONLY != 0 => (entry.read_only, ".readonly"),
                    _ => (entry.read_write, ""),
                };
                let is_there = held.contains(&(site.partition, volume));
                if !plan.old.addresses.contains(&site.server) || is_there {
                    continue;
                }
                plan.missing.push(Remaining {
                    name: format!("{}{suffix}", entry.name),
                    volume,
                    at: Location {
                        server: new,
                        partition: site.partition,
                    },
                    reason: "the new machine does not have it".to_owned(),
                });
            }
        }
        Ok(())
    }

    /// Makes a planned replacement.
    ///
    /// # Errors
    /// The caller has no permission, or the VLDB has changed since the plan.
    pub async fn replace_server(&self, plan: &ReplacePlan) -> Result<()> {
        if let Some(other) = &plan.registered {
            self.remove_server(other).await?;
        }
        let changed = match (plan.old.uuid, v4(&plan.old).first(), plan.addresses.first()) {
            (Some(uuid), ..) => self.set_addresses(uuid, &plan.addresses).await,
            (None, Some(old), Some(new)) => self.change_address(*old, *new).await,
            (None, ..) => Ok(()),
        };
        let adopted = match (changed, &plan.registered) {
            (Ok(()), Some(other)) => match other.uuid {
                Some(uuid) => self.set_addresses(uuid, &plan.addresses).await,
                None => Ok(()),
            },
            (changed, _) => changed,
        };
        adopted.map_err(|error| match plan.registered {
            Some(_) => Error::Partial {
                what: "the replacement stopped part way".to_owned(),
                cause: Box::new(error),
                left: "Repeat the command, or restart the new machine, which then registers again"
                    .to_owned(),
            },
            None => error,
        })
    }

    /// Whether a volume server answers within [`PATIENCE`].
    async fn answers(&self, server: Ipv4Addr) -> bool {
        let asked = tokio::time::timeout(PATIENCE, self.partitions(server.into()));
        matches!(asked.await, Ok(Ok(_)))
    }
}

fn v4(server: &ServerAddresses) -> Vec<Ipv4Addr> {
    let addresses = server.addresses.iter();
    let addresses = addresses.filter_map(|address| match address {
        IpAddr::V4(address) => Some(*address),
        IpAddr::V6(_) => None,
    });
    addresses.collect()
}
