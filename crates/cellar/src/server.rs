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
use crate::session::{As, CellOptions, Session, resolve};

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
    match options.operation {
        Operation::Drain(options) => {
            let session = session(&options.cell).await?;
            let outcome = drain::run(&session, &options).await;
            session.end(outcome).await
        }
        Operation::Remove(options) => {
            let session = session(&options.cell).await?;
            let outcome = remove::run(&session, &options).await;
            session.end(outcome).await
        }
        Operation::Replace(options) => {
            let session = session(&options.cell).await?;
            let outcome = replace::run(&session, &options).await;
            session.end(outcome).await
        }
    }
}

async fn session(cell: &CellOptions) -> Outcome<Session> {
    cell.session(None, As::AdministratorIfPossible).await
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

/// Prints the work that is left on the machine itself.
fn print_tasks(head: &str, tasks: &[String]) {
    outln!("{head}");
    for task in tasks {
        outln!("  - {task}");
    }
}
