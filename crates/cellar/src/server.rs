//! `cellar server`: takes file servers out of a cell, and replaces their machines.

mod drain;
mod remove;
mod replace;

use std::net::{IpAddr, Ipv4Addr};

use cellar_admin::osd::{Device, Osds, State};
use cellar_admin::vos::ServerAddresses;
use clap::Subcommand;

use crate::failure::{Failure, Outcome};
use crate::output::outln;
use crate::session::{As, CellOptions, resolve};

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    operation: Operation,
}

#[derive(Debug, Subcommand)]
enum Operation {
    /// Move every volume of a file server to other servers.
    Drain(drain::Options),
    /// Remove an empty file server from the cell.
    Remove(remove::Options),
    /// Give the place of a file server to another machine.
    Replace(replace::Options),
}

/// The options of every operation.
#[derive(Debug, clap::Args)]
struct Common {
    /// Print the changes, or the reason why there can be none, and change nothing.
    #[arg(long)]
    dry_run: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    cell: CellOptions,
}

impl Options {
    /// The name of the operation.
    pub(crate) fn name(&self) -> &'static str {
        match self.operation {
            Operation::Drain(_) => "drain",
            Operation::Remove(_) => "remove",
            Operation::Replace(_) => "replace",
        }
    }
}

pub(crate) async fn run(options: Options) -> Outcome {
    let Common { cell, .. } = match &options.operation {
        Operation::Drain(options) => &options.common,
        Operation::Remove(options) => &options.common,
        Operation::Replace(options) => &options.common,
    };
    let session = cell.session(None, As::AdministratorIfPossible).await?;
    let outcome = match &options.operation {
        Operation::Drain(options) => drain::run(&session, options).await,
        Operation::Remove(options) => remove::run(&session, options).await,
        Operation::Replace(options) => replace::run(&session, options).await,
    };
    session.end(outcome).await
}

/// The IPv4 address of a file server, by name or address.
fn address(server: &str) -> Outcome<Ipv4Addr> {
    match resolve(server)? {
        (IpAddr::V4(address), None) => Ok(address),
        (IpAddr::V4(_), Some(_)) => Err(Failure::usage(format!(
            "{server}: name the file server without a port"
        ))),
        (IpAddr::V6(address), _) => Err(Failure::usage(format!(
            "{address}: file servers have IPv4 addresses"
        ))),
    }
}

/// The devices in use whose server has an address of this file server.
async fn devices_at(osds: &Osds<'_>, server: &ServerAddresses) -> Outcome<Vec<Device>> {
    let mut devices = match osds.list().await {
        Ok(devices) => devices,
        // The database servers have no object storage.
        Err(cellar_admin::Error::Usage(_)) => Vec::new(),
        Err(error) => return Err(error.into()),
    };
    devices.retain(|device| {
        let here = device
            .addresses
            .iter()
            .any(|address| server.addresses.contains(address));
        here && !matches!(device.state, State::Local | State::Obsolete)
    });
    Ok(devices)
}

/// The line about a device that still has objects of files, with the command that moves them.
fn device_line(device: &Device) -> String {
    let Device { id, name, .. } = device;
    format!("device {id} ({name}): 'cellar osd drain {id} -wait' moves its objects away")
}

/// Prints the work that is left on the machine itself.
fn print_tasks(head: &str, tasks: &[String]) {
    outln!("{head}");
    for task in tasks {
        outln!("  - {task}");
    }
}
