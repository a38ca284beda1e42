//! `cellar find`: finds files by name, type, size, age and owner.

use std::time::{Duration, SystemTime};

use cellar_client::{CellName, Client, Follow, Node};
use cellar_wire::ids::{AfsTime, ViceId};
use cellar_wire::rxafs::FileType;
use globset::GlobMatcher;
use serde_json::{Value, json};

use super::tree::{Across, StayOption, Visit, walk};
use super::{glob, ls};
use crate::failure::{Failure, Failures, Outcome};
use crate::output::outln;
use crate::quantities;
use crate::session::{CellOptions, Session};

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Directories below /afs to search; '*', '?' and '[...]' stand for names. Default: the root of
    /// the home cell.
    #[arg(value_name = "PATH")]
    pub(super) paths: Vec<String>,
    /// Names that match this pattern, for example '*.root'.
    #[arg(long, value_name = "PATTERN", value_parser = glob::pattern)]
    name: Option<GlobMatcher>,
    /// Vnodes of this type: f (file), d (directory), l (symbolic link) or m (mount point).
    #[arg(long = "type", value_name = "TYPE", value_enum)]
    kind: Option<Kind>,
    /// Files of at least this size.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    min_size: Option<u64>,
    /// Files of at most this size.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    max_size: Option<u64>,
    /// Files that were modified within this time: 90s, 15m, 2h, 7d.
    #[arg(long, value_name = "TIME", value_parser = quantities::time_option)]
    newer_than: Option<Duration>,
    /// Files that were last modified before this time: 90s, 15m, 2h, 7d.
    #[arg(long, value_name = "TIME", value_parser = quantities::time_option)]
    older_than: Option<Duration>,
    /// Files of this user: a name or an id.
    #[arg(long, value_name = "USER")]
    owner: Option<String>,
    /// Search down to this depth only; 0 is PATH itself.
    #[arg(long, value_name = "N", default_value_t = usize::MAX, hide_default_value = true)]
    max_depth: usize,
    #[command(flatten)]
    stay: StayOption,
    /// End each path with a NUL instead of a line end, for 'xargs -0'.
    #[arg(short = '0', long)]
    print0: bool,
    /// Print JSON.
    #[arg(long, conflicts_with = "print0")]
    json: bool,
    #[command(flatten)]
    pub(super) cell: CellOptions,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Kind {
    /// A file.
    F,
    /// A directory.
    D,
    /// A symbolic link.
    L,
    /// A mount point.
    M,
}

impl Kind {
    /// Whether a vnode is of this type. A mount point that is followed is a directory too.
    fn is_of(self, visit: &Visit) -> bool {
        match self {
            Self::F => visit.node.status.file_type == FileType::File,
            Self::D => visit.node.is_directory(),
            Self::L => visit.node.is_link(),
            Self::M => visit.is_mount_point,
        }
    }
}

fn size(text: &str) -> Result<u64, String> {
    quantities::size(text)
        .ok_or_else(|| format!("'{text}' is not a size: write 4096, 64K, 500M or 2G"))
}

/// The conditions of a search.
struct Wanted<'a> {
    options: &'a Options,
    owner: Option<ViceId>,
    /// The bounds of the time of modification.
    after: Option<AfsTime>,
    before: Option<AfsTime>,
}

impl Wanted<'_> {
    fn has(&self, visit: &Visit) -> bool {
        let options = self.options;
        let status = &visit.node.status;
        let has_size = options.min_size.is_some() || options.max_size.is_some();
        let modified = status.client_mod_time;
        let name = String::from_utf8_lossy(&visit.name);
        options
            .name
            .as_ref()
            .is_none_or(|glob| glob.is_match(&*name))
            && options.kind.is_none_or(|wanted| wanted.is_of(visit))
            && (!has_size || Kind::F.is_of(visit))
            && options.min_size.is_none_or(|least| status.length >= least)
            && options.max_size.is_none_or(|most| status.length <= most)
            && self.after.is_none_or(|after| modified >= after)
            && self.before.is_none_or(|before| modified < before)
            && self.owner.is_none_or(|owner| status.owner == owner)
    }
}

/// The time before now.
fn ago(time: Duration) -> AfsTime {
    let then = SystemTime::now().checked_sub(time);
    AfsTime::from(then.unwrap_or(SystemTime::UNIX_EPOCH))
}

pub(super) async fn run(session: &Session, mut options: Options) -> Outcome {
    if options.paths.is_empty() {
        options.paths.push(format!("/afs/{}", session.cell.name));
    }
    let client = &session.client;
    let owner = match &options.owner {
        Some(owner) => Some(owner_id(session, owner).await?),
        None => None,
    };
    let wanted = Wanted {
        options: &options,
        owner,
        after: options.newer_than.map(ago),
        before: options.older_than.map(ago),
    };
    let mut failures = Failures::of("cellar find");
    let mut found: Vec<(CellName, ViceId, Value)> = Vec::new();
    for path in &options.paths {
        let Some(top) = failures.note(find_top(client, path).await) else {
            continue;
        };
        let print = async |visit: &Visit, failures: &mut Failures| {
            let status = &visit.node.status;
            if status.file_type == FileType::Invalid {
                let problem = format!("{}: {}", visit.path, status.error_code);
                failures.note(Err::<(), _>(Failure::new(problem)));
            } else if !wanted.has(visit) {
            } else if options.json {
                let row = json!({
                    "path": visit.path,
                    "fid": visit.node.fid.to_string(),
                    "type": super::stat::kind(status),
                    "owner": status.owner.0,
                    "length": status.length,
                    "modified": status.client_mod_time.0,
                });
                found.push((visit.node.volume.cell.clone(), status.owner, row));
            } else if options.print0 {
                crate::output::write(format!("{}\0", visit.path).as_bytes());
            } else {
                outln!("{}", visit.path);
            }
            Ok(())
        };
        let mut across = match options.stay.one_file_system {
            true => Across::Nothing,
            false => Across::All,
        };
        let (top, depth) = ((path.as_str(), top), options.max_depth);
        walk(client, top, depth, &mut across, &mut failures, print).await?;
    }
    if options.json {
        let ids = found.iter().map(|(cell, owner, _)| (cell.clone(), *owner));
        let owners = ls::names_of(session, ids).await;
        let with_name = |(cell, owner, mut row): (CellName, ViceId, Value)| {
            row["owner_name"] = json!(owners.get(&(cell, owner)));
            row
        };
        let rows: Vec<_> = found.into_iter().map(with_name).collect();
        outln!("{:#}", Value::from(rows));
    }
    failures.end()
}

async fn find_top(client: &Client, path: &str) -> Outcome<Node> {
    Ok(client.find(path, Follow::MOUNTS).await?)
}

async fn owner_id(session: &Session, owner: &str) -> Outcome<ViceId> {
    let lower = owner.to_ascii_lowercase();
    let ids = session.client.ids_of(&session.cell, &[&lower]).await?;
    match (ids.first(), owner.parse()) {
        (Some(&id), _) if id != ViceId::ANONYMOUS || lower == "anonymous" => Ok(id),
        (_, Ok(id)) => Ok(ViceId(id)),
        _ => Err(Failure::new(format!("there is no user or group '{owner}'"))),
    }
}
