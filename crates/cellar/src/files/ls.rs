//! `cellar ls`: lists directories.

use std::collections::{BTreeMap, BTreeSet};

use cellar_client::{Client, Entry, Error, Follow, Node};
use cellar_wire::ids::ViceId;
use cellar_wire::rxafs::{AfsFetchStatus, FileType};
use serde_json::{Value, json};

use super::printable;
use crate::failure::{Failures, Outcome};
use crate::output::{out, outln};
use crate::session::{CellOptions, Session};

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Directories or files below /afs. Default: the root of the home cell.
    #[arg(value_name = "PATH")]
    pub(super) paths: Vec<String>,
    /// Show mode, link count, owner, size, date, and the targets of links and mount points.
    #[arg(short, long)]
    long: bool,
    /// List the directories themselves, not their contents.
    #[arg(short, long)]
    directory: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pub(super) cell: CellOptions,
}

/// One line of a listing.
struct Row {
    name: String,
    status: AfsFetchStatus,
    fid: String,
    /// The target of a link, or the text of a mount point.
    target: Option<String>,
}

pub(super) async fn run(session: &Session, mut options: Options) -> Outcome {
    if options.paths.is_empty() {
        options.paths.push(format!("/afs/{}", session.cell.name));
    }
    let mut failures = Failures::of("cellar ls");
    let mut listings = Vec::new();
    for path in &options.paths {
        if let Some(rows) = failures.note(list(session, path, &options).await) {
            listings.push((path.as_str(), rows));
        }
    }
    if options.json {
        outln!("{:#}", as_json(&listings));
        return failures.end();
    }
    let owners = owners(session, &listings, options.long).await;
    let titles = options.paths.len() > 1;
    for (index, (path, rows)) in listings.iter().enumerate() {
        if titles {
            outln!("{}{path}:", if index > 0 { "\n" } else { "" });
        }
        out!(
            "{}",
            if options.long {
                long(rows, &owners)
            } else {
                short(rows)
            }
        );
    }
    failures.end()
}

async fn list(session: &Session, path: &str, options: &Options) -> Outcome<Vec<Row>> {
    let client = &session.client;
    let follow = if options.long && !path.ends_with('/') {
        Follow::MOUNTS
    } else {
        Follow::ALL
    };
    let follow = if options.directory {
        Follow::NONE
    } else {
        follow
    };
    let Some(node) = client.walk(path, follow).await? else {
        // `/afs` of a home cell without `root.afs`: list the known cells.
        let mut rows = Vec::new();
        for cell in client.cells() {
            if let Ok(node) = client
                .find(&format!("/afs/{}", cell.name), Follow::ALL)
                .await
            {
                rows.push(row(client, cell.name.to_string(), &node).await?);
            }
        }
        return Ok(rows);
    };
    if options.directory || !node.is_directory() {
        return Ok(vec![row(client, path.to_owned(), &node).await?]);
    }
    if !options.long && !options.json {
        let mut entries = client
            .read_directory(&node)
            .await
            .map_err(|error| named(path, error))?;
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        let unknown = AfsFetchStatus::failed(cellar_wire::AbortCode(0));
        let name = |entry: Entry| Row {
            name: printable(&entry.name),
            fid: entry.fid.to_string(),
            status: unknown,
            target: None,
        };
        return Ok(entries.into_iter().map(name).collect());
    }
    let mut children = client
        .children(&node)
        .await
        .map_err(|error| named(path, error))?;
    children.sort_by(|a, b| a.0.cmp(&b.0));
    let mut rows = Vec::with_capacity(children.len());
    for (name, child) in children {
        rows.push(row(client, printable(&name), &child).await?);
    }
    Ok(rows)
}

/// Names the path in a file server's refusal, which would otherwise name an id.
fn named(path: &str, error: Error) -> Error {
    match error {
        Error::Fileserver { cause, .. } => Error::Fileserver {
            what: path.to_owned(),
            cause,
        },
        other => other,
    }
}

async fn row(client: &Client, name: String, node: &Node) -> Result<Row, Error> {
    let target = if node.status.file_type == FileType::Symlink {
        let text = client.link_text(node).await?;
        let text = printable(&text);
        Some(match node.is_mount_point() {
            true => text.strip_suffix('.').unwrap_or(&text).to_owned(),
            false => text,
        })
    } else {
        None
    };
    Ok(Row {
        name,
        status: node.status,
        fid: node.fid.to_string(),
        target,
    })
}

/// Names of the owners in the listings. If the protection server does not answer, the map is empty
/// and numbers are shown.
async fn owners(
    session: &Session,
    listings: &[(&str, Vec<Row>)],
    wanted: bool,
) -> BTreeMap<ViceId, String> {
    let rows = listings.iter().flat_map(|(_, rows)| rows);
    let ids: BTreeSet<ViceId> = rows.map(|row| row.status.owner).collect();
    let ids: Vec<_> = ids.into_iter().filter(|_| wanted).collect();
    match session.client.names_of(&session.cell, &ids).await {
        Ok(names) => ids.into_iter().zip(names).collect(),
        Err(_) => BTreeMap::new(),
    }
}

fn short(rows: &[Row]) -> String {
    rows.iter().map(|row| format!("{}\n", row.name)).collect()
}

fn long(rows: &[Row], owners: &BTreeMap<ViceId, String>) -> String {
    let owner = |row: &Row| {
        owners
            .get(&row.status.owner)
            .cloned()
            .unwrap_or_else(|| row.status.owner.0.to_string())
    };
    let widest = |text: &dyn Fn(&Row) -> String| {
        rows.iter()
            .map(|row| text(row).chars().count())
            .max()
            .unwrap_or(0)
    };
    let links = widest(&|row| row.status.link_count.to_string());
    let owner_width = widest(&owner);
    let size = widest(&|row| row.status.length.to_string());
    let line = |row: &Row| {
        if row.status.file_type == FileType::Invalid {
            return format!("?????????? {} ({})\n", row.name, row.status.error_code);
        }
        let arrow = match (&row.target, is_mount(row)) {
            (Some(target), true) => format!(" [{target}]"),
            (Some(target), false) => format!(" -> {target}"),
            (None, _) => String::new(),
        };
        format!(
            "{} {:>links$} {:<owner_width$} {:>size$} {} {}{arrow}\n",
            mode(&row.status),
            row.status.link_count,
            owner(row),
            row.status.length,
            date(row),
            row.name
        )
    };
    rows.iter().map(line).collect()
}

fn is_mount(row: &Row) -> bool {
    row.status.file_type == FileType::Symlink
        && cellar_client::mount_point::is_mount_point(row.status.unix_mode)
}

/// The ten letters of a mode. A mount point has the type letter `m`.
pub(super) fn mode(status: &AfsFetchStatus) -> String {
    let kind = match status.file_type {
        FileType::Directory => 'd',
        FileType::File => '-',
        FileType::Symlink if cellar_client::mount_point::is_mount_point(status.unix_mode) => 'm',
        FileType::Symlink => 'l',
        FileType::Invalid => '?',
    };
    let mut text = String::from(kind);
    for (shift, special, letter) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let bits = status.unix_mode >> shift & 7;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (bits & 1 != 0, status.unix_mode & special != 0) {
            (true, true) => letter,
            (false, true) => letter.to_ascii_uppercase(),
            (true, false) => 'x',
            (false, false) => '-',
        });
    }
    text
}

/// `Nov 21 10:45` for dates of this year, `Nov 21  2019` for others.
fn date(row: &Row) -> String {
    let date = cellar_admin::date::ctime(row.status.client_mod_time);
    let this_year = cellar_admin::date::ctime(super::now());
    let (day, time, year) = (date.get(4..10), date.get(11..16), date.get(20..24));
    match (day, time, year) {
        (Some(day), Some(time), Some(year)) if this_year.ends_with(year) => format!("{day} {time}"),
        (Some(day), Some(_), Some(year)) => format!("{day}  {year}"),
        _ => date,
    }
}

fn as_json(listings: &[(&str, Vec<Row>)]) -> Value {
    let row = |row: &Row| {
        json!({
            "name": row.name,
            "fid": row.fid,
            "type": super::stat::kind(&row.status),
            "mode": format!("{:04o}", row.status.unix_mode),
            "links": row.status.link_count,
            "owner": row.status.owner.0,
            "length": row.status.length,
            "modified": row.status.client_mod_time.0,
            "data_version": row.status.data_version,
            "target": row.target,
        })
    };
    let listing = |(path, rows): &(&str, Vec<Row>)| json!({ "path": path, "entries": rows.iter().map(row).collect::<Vec<_>>() });
    listings.iter().map(listing).collect()
}
