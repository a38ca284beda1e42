//! `cellar ls`: lists directories.

mod format;

use std::collections::{BTreeMap, BTreeSet};

use cellar_client::{CellName, Client, Entry, Error, Follow, Node};
use cellar_wire::ids::ViceId;
use cellar_wire::rxafs::{AfsFetchStatus, FileType};

use super::shown::ShownOptions;
use super::{join, printable};
use crate::failure::{Failures, Outcome};
use crate::output::{out, outln};
use crate::session::Session;

use format::Owners;
pub(super) use format::mode;

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Directories or files below /afs; '*', '?' and '[...]' stand for names. Default: the root of
    /// the home cell.
    #[arg(value_name = "PATH")]
    pub(super) paths: Vec<String>,
    /// Show mode, link count, owner, size, date, and the targets of links and mount points.
    #[arg(short, long)]
    long: bool,
    /// Show names that begin with a dot too, and '.' and '..'.
    #[arg(short, long)]
    all: bool,
    /// Show names that begin with a dot too.
    #[arg(short = 'A', long)]
    almost_all: bool,
    /// List subdirectories too. Mount points are not followed.
    #[arg(short = 'R', long)]
    recursive: bool,
    /// List the directories themselves, not their contents.
    #[arg(short, long)]
    directory: bool,
    #[command(flatten)]
    pub(super) shown: ShownOptions,
}

impl Options {
    /// Whether the statuses of the files are needed, and not only their names.
    fn wants_statuses(&self) -> bool {
        self.long || self.shown.json || self.recursive
    }

    fn shows(&self, name: &[u8]) -> bool {
        self.all || self.almost_all || self.shown.json || !name.starts_with(b".")
    }
}

/// One line of a listing.
struct Row {
    name: String,
    cell: Option<CellName>,
    status: AfsFetchStatus,
    fid: String,
    /// The target of a link, or the text of a mount point.
    target: Option<String>,
}

/// A directory with its rows.
struct Listing {
    path: String,
    rows: Vec<Row>,
    /// The subdirectories, in reverse order.
    below: Vec<(String, Node)>,
}

pub(super) async fn run(session: &Session, mut options: Options) -> Outcome {
    if options.paths.is_empty() {
        options.paths.push(format!("/afs/{}", session.cell.name));
    }
    let client = &session.client;
    let mut failures = Failures::of("cellar ls");
    let mut listings = Vec::new();
    let titles = options.paths.len() > 1 || options.recursive;
    let mut printed = false;
    for path in &options.paths {
        let mut next = failures.note(list(client, path, &options).await);
        let mut todo = Vec::new();
        loop {
            if let Some(mut listing) = next.take() {
                todo.append(&mut listing.below);
                if options.shown.json {
                    listings.push(listing);
                } else {
                    if titles {
                        outln!("{}{}:", if printed { "\n" } else { "" }, listing.path);
                    }
                    print(session, &listing, &options).await;
                    printed = true;
                }
            }
            let Some((path, node)) = todo.pop() else {
                break;
            };
            next = failures.note(list_directory(client, &path, &node, &options).await);
        }
    }
    if options.shown.json {
        let owners = owners(session, &listings).await;
        outln!("{:#}", format::as_json(&listings, &owners));
    }
    failures.end()
}

async fn print(session: &Session, listing: &Listing, options: &Options) {
    if !options.long {
        return out!("{}", format::short(&listing.rows));
    }
    let owners = owners(session, std::slice::from_ref(listing)).await;
    let text = format::long(&listing.rows, &owners, options.shown.human_readable);
    out!("{text}");
}

async fn list(client: &Client, path: &str, options: &Options) -> Outcome<Listing> {
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
    let of_rows = |rows| Listing {
        path: path.to_owned(),
        rows,
        below: Vec::new(),
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
        return Ok(of_rows(rows));
    };
    if options.directory || !node.is_directory() {
        return Ok(of_rows(vec![row(client, path.to_owned(), &node).await?]));
    }
    list_directory(client, path, &node, options).await
}

async fn list_directory(
    client: &Client,
    path: &str,
    node: &Node,
    options: &Options,
) -> Outcome<Listing> {
    let mut listing = Listing {
        path: path.to_owned(),
        rows: Vec::new(),
        below: Vec::new(),
    };
    let rows = &mut listing.rows;
    if options.all && !options.shown.json {
        rows.push(row(client, ".".to_owned(), node).await?);
        // The directory above may be in a volume that does not answer.
        let above = client.find(&join(path, ".."), Follow::ALL).await;
        let above = above.unwrap_or_else(|_| node.clone());
        rows.push(row(client, "..".to_owned(), &above).await?);
    }
    if !options.wants_statuses() {
        let entries = client.read_directory(node).await;
        let mut entries = entries.map_err(|error| named(path, error))?;
        entries.retain(|entry| options.shows(&entry.name));
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        let unknown = AfsFetchStatus::failed(cellar_wire::AbortCode(0));
        let name = |entry: Entry| Row {
            name: printable(&entry.name),
            cell: None,
            fid: entry.fid.to_string(),
            status: unknown,
            target: None,
        };
        rows.extend(entries.into_iter().map(name));
        return Ok(listing);
    }
    let children = client.children(node).await;
    let mut children = children.map_err(|error| named(path, error))?;
    children.retain(|(name, _)| options.shows(name));
    children.sort_by(|a, b| a.0.cmp(&b.0));
    for (name, child) in children {
        let name = printable(&name);
        rows.push(row(client, name.clone(), &child).await?);
        if options.recursive && child.is_directory() {
            listing.below.insert(0, (join(path, &name), child));
        }
    }
    Ok(listing)
}

/// Names the path in a file server's refusal, which would otherwise name an id.
pub(super) fn named(path: &str, error: Error) -> Error {
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
        cell: Some(node.volume.cell.clone()),
        status: node.status,
        fid: node.fid.to_string(),
        target,
    })
}

/// Names of the owners in the listings. An owner of a cell whose protection server does not answer
/// is left out, and is shown as a number.
async fn owners(session: &Session, listings: &[Listing]) -> Owners {
    let rows = listings.iter().flat_map(|listing| &listing.rows);
    let ids = rows.filter_map(|row| Some((row.cell.clone()?, row.status.owner)));
    names_of(session, ids).await
}

/// Names of users by cell and id, with one question for each cell. An id of a cell whose protection
/// server does not answer is left out.
pub(super) async fn names_of(
    session: &Session,
    all: impl Iterator<Item = (CellName, ViceId)>,
) -> Owners {
    let mut ids: BTreeMap<CellName, BTreeSet<ViceId>> = BTreeMap::new();
    for (cell, id) in all {
        ids.entry(cell).or_default().insert(id);
    }
    let mut owners = Owners::new();
    for (name, ids) in ids {
        let Ok(cell) = session.client.cell(&name) else {
            continue;
        };
        let ids: Vec<_> = ids.into_iter().collect();
        if let Ok(names) = session.client.names_of(&cell, &ids).await {
            let named = ids.into_iter().zip(names);
            owners.extend(named.map(|(id, owner)| ((name.clone(), id), owner)));
        }
    }
    owners
}
