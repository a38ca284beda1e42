//! `cellar console login`: asks the running console for a one-time token.

use cellar_console::auth::Role;

use super::socket::SocketOption;
use crate::failure::{Failure, Outcome};
use crate::output::outln;
use crate::suite::print_json;

pub(super) const EXAMPLES: &str = "The token opens one session, within ten minutes.

Examples:
  cellar console login                       an administrator
  cellar console login --read-only           a reader, who makes no changes
  cellar console login --socket /run/cellar-console/socket --json | jq -r .url";

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The session sees the pages and makes no changes.
    #[arg(long)]
    read_only: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    socket: SocketOption,
}

pub(super) async fn run(options: &Options) -> Outcome {
    let role = match options.read_only {
        true => Role::Reader,
        false => Role::Administrator,
    };
    let path = options.socket.path()?;
    let address = cellar_console::request_login(&path, role).await;
    let address = address.map_err(|cause| {
        Failure::new(format!(
            "{}: {cause}. Is 'cellar console' running, and are you root or its account?",
            path.display()
        ))
    })?;
    match options.json {
        true => print_json(&serde_json::json!({ "url": address, "role": role.word() })),
        false => {
            outln!("{address}");
            Ok(())
        }
    }
}
