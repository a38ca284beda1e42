//! `cellar stat`: prints everything that the file server and the VLDB know about a path.

use cellar_client::Follow;
use cellar_client::mount_point::is_mount_point;
use cellar_wire::rxafs::{AfsFetchStatus, FileType};
use serde_json::json;

use crate::failure::{Failure, Failures, Outcome};
use crate::output::outln;
use crate::session::{CellOptions, Session};

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Paths below /afs.
    #[arg(required = true, value_name = "PATH")]
    pub(super) paths: Vec<String>,
    /// Show links and mount points themselves, not their targets.
    #[arg(long)]
    no_follow: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pub(super) cell: CellOptions,
}

/// The type of a vnode, in words.
pub(super) fn kind(status: &AfsFetchStatus) -> &'static str {
    match status.file_type {
        FileType::File => "file",
        FileType::Directory => "directory",
        FileType::Symlink if is_mount_point(status.unix_mode) => "mount point",
        FileType::Symlink => "symbolic link",
        FileType::Invalid => "unknown",
    }
}

pub(super) async fn run(session: &Session, options: Options) -> Outcome {
    let mut failures = Failures::of("cellar stat");
    let mut answers = Vec::new();
    for path in &options.paths {
        let follow = if options.no_follow {
            Follow::NONE
        } else {
            Follow::ALL
        };
        let found = session.client.find(path, follow).await;
        let Some(node) = failures.note(found.map_err(Failure::from)) else {
            continue;
        };
        let status = &node.status;
        let ids = [status.owner, status.group, status.author];
        let names = match session.client.cell(&node.volume.cell) {
            Ok(cell) => session.client.names_of(&cell, &ids).await.ok(),
            Err(_) => None,
        };
        // Without an answer of the protection server there are no names.
        let name = |index: usize| names.as_ref().and_then(|names| names.get(index));
        if options.json {
            answers.push(json!({
                "path": path,
                "cell": node.volume.cell.as_str(),
                "volume": node.volume.full_name(),
                "fid": node.fid.to_string(),
                "type": kind(status),
                "mode": format!("{:04o}", status.unix_mode),
                "links": status.link_count,
                "owner": status.owner.0,
                "owner_name": name(0),
                "group": status.group.0,
                "group_name": name(1),
                "author": status.author.0,
                "author_name": name(2),
                "length": status.length,
                "data_version": status.data_version,
                "modified": status.client_mod_time.0,
                "server_modified": status.server_mod_time.0,
                "caller_rights": status.caller_access.to_string(),
                "anyuser_rights": status.anonymous_access.to_string(),
            }));
            continue;
        }
        let shown = |index: usize| {
            name(index)
                .cloned()
                .unwrap_or_else(|| ids[index].0.to_string())
        };
        outln!("      File: {path}");
        outln!("      Type: {}, {} bytes", kind(status), status.length);
        outln!(
            "       Fid: {} in volume {} of cell {}",
            node.fid,
            node.volume.full_name(),
            node.volume.cell
        );
        outln!(
            "      Mode: {} ({:04o}), links {}",
            super::ls::mode(status),
            status.unix_mode,
            status.link_count
        );
        outln!(
            "     Owner: {} ({}), group {}, last changed by {}",
            shown(0),
            status.owner.0,
            status.group.0,
            shown(2)
        );
        outln!(
            "    Rights: you {}, system:anyuser {}",
            rights(&status.caller_access.to_string()),
            rights(&status.anonymous_access.to_string())
        );
        outln!(
            "  Modified: {}",
            cellar_admin::date::ctime(status.client_mod_time)
        );
        outln!(
            "   Changed: {}",
            cellar_admin::date::ctime(status.server_mod_time)
        );
        outln!("   Version: {}", status.data_version);
    }
    if options.json {
        outln!("{:#}", serde_json::Value::from(answers));
    }
    failures.end()
}

fn rights(letters: &str) -> &str {
    if letters.is_empty() { "none" } else { letters }
}
