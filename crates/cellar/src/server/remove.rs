//! `cellar server remove`: removes an empty file server from the cell's databases.

use cellar_admin::osd::Osds;
use cellar_admin::vos::Volumes;
use serde_json::json;

use super::{Common, address, device_line, devices_at, print_tasks};
use crate::failure::{Failure, Outcome};
use crate::output::outln;
use crate::session::Session;
use crate::suite::print_json;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "The server is refused while the VLDB names volumes on it, or files have objects on its devices.

Examples:
  cellar server remove fs2.example.org --dry-run
  cellar server remove 192.0.2.11"
)]
pub(super) struct Options {
    /// The file server, by name or address.
    #[arg(id = "fileserver", value_name = "SERVER")]
    server: String,
    #[command(flatten)]
    pub(super) common: Common,
}

pub(super) async fn run(session: &Session, options: &Options) -> Outcome {
    let volumes = Volumes::new(&session.client, &session.cell);
    let osds = Osds::new(&session.client, &session.cell);
    let own = address(&options.server)?;
    let server = volumes.known_server(own.into()).await?;
    volumes.check_unused(&server).await?;
    let devices = devices_at(&osds, &server).await?;
    let mut held = Vec::new();
    for device in &devices {
        let files = osds.files_on(device.id, 1).await?;
        if !files.files.is_empty() || !files.silent.is_empty() {
            held.push(format!("files have objects on {}", device_line(device)));
        }
    }
    if let Some(first) = held.first() {
        return Err(Failure::new(first));
    }
    if !options.common.dry_run {
        for device in &devices {
            osds.remove(&device.id.to_string(), false).await?;
        }
        volumes.remove_server(&server).await?;
    }
    let tasks = tasks(session, options, own.into());
    if options.common.json {
        let devices: Vec<u32> = devices.iter().map(|device| device.id).collect();
        return print_json(&json!({
            "server": server,
            "devices": devices,
            "removed": !options.common.dry_run,
            "left_to_do": tasks,
        }));
    }
    for device in &devices {
        outln!("device {} ({})", device.id, device.name);
    }
    let server = &options.server;
    if options.common.dry_run {
        outln!("{server} can be removed; nothing was changed (--dry-run)");
        return Ok(());
    }
    outln!("{server} was removed from the cell's databases");
    print_tasks("Left to do:", &tasks);
    Ok(())
}

/// The work that no call can do.
fn tasks(session: &Session, options: &Options, own: std::net::IpAddr) -> Vec<String> {
    let mut tasks = vec![
        format!(
            "on {}: stop and disable the service ('systemctl disable --now cellar'); a start registers the server again",
            options.server
        ),
        "remove its directory when no backup needs it; it holds the key of the cell".to_owned(),
        "if the machine leaves your hands, change the key: 'cellar key add', see docs/operating/keys.md"
            .to_owned(),
    ];
    if session.cell.database_servers.contains(&own) {
        tasks.push(format!(
            "{} is a database server too, and stays one: its databases were not touched",
            options.server
        ));
    }
    tasks
}
