//! `cellar cp`: copies into AFS, out of it, and within it.
//!
//! A tree is walked in order. Directories are made when the walk reaches them. Up to
//! [`super::tasks::TASKS_MAX`] tasks copy files at the same time, so that many small files do not
//! wait for each other's round trips.
//!
//! 1. With `-r`, a file that cannot be read is reported and skipped, and the copy fails at its end.
//! 2. Any other failure stops the copy, and so does a signal. Stores under way are aborted, new
//!    files that are still empty are removed, and completed copies stay. A file has its final name
//!    only when it is complete ([`part`]).
//! 3. With `-r`, symbolic links are copied as links. Mount points are not followed: they are
//!    reported, and the copy fails at its end for them too.
//!
//! If the file server offers it, files in objects are transferred to and from their devices
//! directly and in parallel. Nothing else is different for them.

mod compare;
mod layout;
mod origin;
mod part;
mod source;
mod target;

use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use cellar_client::path::split_last;
use cellar_client::{Client, Follow, Node, Stop, UploadStep};
use cellar_wire::object::Shape;
use serde_json::json;
use tokio::task::LocalSet;

use self::origin::{Kind, Origin};
use self::part::Names;
use self::source::{LocalSource, Source, Watched};
use self::target::{AfsDestination, Destination, Directory, Filling, OpenFile, Opening};
use super::is_afs;
use super::tasks::Tasks;
use crate::failure::{Failure, Outcome};
use crate::output::outln;
use crate::progress::Progress;
use crate::session::{CellOptions, Session};

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The files or directories to copy, then the target: a file or an existing directory. Paths
    /// below /afs are in AFS, other paths are on this machine; '-' is standard input.
    #[arg(required = true, num_args = 2.., value_name = "PATH")]
    pub(super) paths: Vec<String>,
    /// Copy directories with all their contents, and links as links.
    #[arg(short, long)]
    recursive: bool,
    /// Preserve modification times.
    #[arg(short, long)]
    preserve: bool,
    /// The layout of the objects of new files, for instance 'stripes=4,stripe-size=1M,copies=2', or
    /// 'ec=4+2' for an erasure code of four data and two parity objects. Default: the cell's
    /// policies decide.
    #[arg(long, value_name = "LAYOUT", value_parser = layout::parse)]
    layout: Option<Shape>,
    /// Read each copy after it is made, and compare checksums with the original.
    #[arg(long)]
    verify: bool,
    /// Continue an interrupted copy. Bytes that are already at the target are not copied again, if
    /// the last of them match the original.
    #[arg(long)]
    resume: bool,
    /// Write to an existing file itself. Otherwise a complete new file replaces it.
    #[arg(long)]
    in_place: bool,
    /// The number of parallel streams for each file that is fetched from a file server. Files in
    /// objects use as many streams as they need.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=16))]
    streams: u8,
    /// At the end, print as JSON how many files and bytes were copied, and how long it took.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pub(super) cell: CellOptions,
}

/// State that all parts of a copy share.
struct Copy {
    client: Arc<Client>,
    recursive: bool,
    preserve: bool,
    layout: Option<Shape>,
    verify: bool,
    resume: bool,
    in_place: bool,
    streams: usize,
    progress: Progress,
    /// Set by a signal, or by the first failure.
    stop: Stop,
    done: Done,
}

/// Counters of the copy.
#[derive(Default)]
struct Done {
    files: AtomicU64,
    /// Bytes copied by this run.
    bytes: AtomicU64,
    /// Bytes that an earlier copy had already written.
    resumed: AtomicU64,
    left_out: AtomicU64,
    /// Files that could not be read.
    unread: AtomicU64,
}

impl Copy {
    /// Reports that a file is left out, and why.
    fn say(&self, from: &Origin, why: &str) {
        self.done.left_out.fetch_add(1, Relaxed);
        self.progress
            .say(&format!("{}: {why}; left out", from.path()));
    }

    /// Handles a failure to read. Within a tree it is reported and the copy continues.
    fn unread<T>(&self, outcome: Outcome<T>) -> Outcome<Option<T>> {
        match outcome {
            Ok(value) => Ok(Some(value)),
            Err(failure) if self.recursive && !self.stop.is_asked() => {
                self.done.unread.fetch_add(1, Relaxed);
                self.progress.say(&format!("cp: {failure}"));
                Ok(None)
            }
            Err(failure) => Err(failure),
        }
    }

    /// Reports the part of a file that stays after a failure.
    fn gave_up(&self, part: Option<String>) {
        if let Some(part) = part {
            self.progress.say(&format!(
                "{part}: a part of the file; the same command with --resume continues it"
            ));
        }
    }

    /// Counts copied bytes.
    fn sent(&self, bytes: u64) {
        self.progress.add(bytes);
        self.done.bytes.fetch_add(bytes, Relaxed);
    }

    /// Reports the progress of a store into a file.
    fn step(&self, to: &Destination, step: UploadStep) {
        match step {
            UploadStep::Sent(bytes) => self.sent(bytes),
            UploadStep::Waits => {
                self.progress.say(&format!(
                    "{}: waits for another store of this file; the server gives up a store whose client is gone after a minute",
                    to.path()
                ));
                self.progress.waits();
            }
        }
    }

    /// Runs work that needs no clean-up if a signal stops it.
    async fn unless_stopped<T>(&self, work: impl Future<Output = Outcome<T>>) -> Outcome<T> {
        let done = self.stop.unless(work).await;
        done.unwrap_or_else(|| Err(Failure::interrupted()))
    }
}

pub(super) async fn run(session: &Session, options: Options, stop: &Stop) -> Outcome {
    let Some((target, sources)) = options.paths.split_last() else {
        return Err(Failure::usage("name the files to copy and the target"));
    };
    if !is_afs(target) && !sources.iter().any(|source| is_afs(source)) {
        return Err(Failure::usage(
            "none of these paths is below /afs; 'cp' copies files of this machine",
        ));
    }
    if options.layout.is_some() && !is_afs(target) {
        return Err(Failure::usage("--layout is for files below /afs"));
    }
    if (options.verify || options.resume) && sources.iter().any(|source| source == "-") {
        let message =
            "standard input cannot be read twice: --verify and --resume do not work with it";
        return Err(Failure::usage(message));
    }
    // The length of standard input is not known in advance.
    let known = !sources.iter().any(|source| source == "-");
    let copy = Arc::new(Copy {
        recursive: options.recursive,
        preserve: options.preserve,
        layout: options.layout,
        verify: options.verify,
        resume: options.resume,
        in_place: options.in_place,
        streams: options.streams.into(),
        progress: Progress::bytes(known.then_some(0)),
        client: session.client.clone(),
        stop: stop.clone(),
        done: Done::default(),
    });
    let began = Instant::now();
    let outcome = LocalSet::new()
        .run_until(copy_all(&copy, sources, target))
        .await;
    copy.progress.finish();
    outcome?;
    if options.json {
        let count = |counted: &AtomicU64| counted.load(Relaxed);
        let done = json!({
            "files": count(&copy.done.files),
            "bytes": count(&copy.done.bytes),
            "resumed": count(&copy.done.resumed),
            "left_out": count(&copy.done.left_out),
            "unread": count(&copy.done.unread),
            "seconds": began.elapsed().as_secs_f64(),
        });
        outln!("{done:#}");
    }
    let count = |counted: &AtomicU64| counted.load(Relaxed);
    match (count(&copy.done.unread), count(&copy.done.left_out)) {
        (0, 0) => Ok(()),
        (unread, left_out) => Err(Failure::new(format!(
            "not all was copied: {unread} could not be read, {left_out} were left out"
        ))),
    }
}

async fn copy_all(copy: &Arc<Copy>, sources: &[String], target: &str) -> Outcome {
    let directory = existing_directory(&copy.client, target).await?;
    if directory.is_none() && (sources.len() > 1 || target.ends_with('/')) {
        return Err(Failure::new(format!(
            "{target}: is not an existing directory"
        )));
    }
    let mut tasks = Tasks::new(copy.stop.clone());
    let walked = walk(copy, sources, (target, directory.as_ref()), &mut tasks).await;
    tasks.finish(walked).await
}

/// Copies directories and links, and starts to copy files. The target is an existing directory or a
/// name.
async fn walk(
    copy: &Arc<Copy>,
    sources: &[String],
    (target, directory): (&str, Option<&Directory>),
    tasks: &mut Tasks,
) -> Outcome {
    for source in sources {
        // The target is a name in the directory, or the name given.
        let to = match directory {
            Some(_) if source == "-" => {
                return Err(Failure::usage("'-' needs the name of a file to write to"));
            }
            Some(directory) => {
                let name = last_name(source)?.to_owned();
                let bad = || Failure::usage(format!("{source}: not a name for a copy"));
                directory.child(name.into()).ok_or_else(bad)?
            }
            None => new_name(&copy.client, target).await?,
        };
        if source == "-" {
            standard_input(copy, &to).await?;
            continue;
        }
        if !is_afs(source) && !is_afs(target) {
            let message = "this machine's 'cp' copies files that are not below /afs";
            return Err(Failure::usage(format!("{source}: {message}")));
        }
        let from = Origin::named(&copy.client, source).await?;
        tree(copy, from, to, tasks).await?;
    }
    Ok(())
}

async fn standard_input(copy: &Copy, to: &Destination) -> Outcome {
    let how = Opening {
        mode: 0o644,
        modified: None,
        resume: false,
        in_place: copy.in_place,
    };
    let file = to.file(&copy.client, how).await?;
    copy.progress.name(last_name(&to.path())?);
    let mut source = LocalSource::standard_input();
    let progress = |bytes| copy.sent(bytes);
    let filled = to.fill(&copy.client, &file, &mut source, progress);
    let filled = copy.unless_stopped(filled).await;
    if filled.is_err() {
        copy.gave_up(to.give_up(&copy.client, &file).await);
    }
    filled?;
    to.complete(&copy.client, &file).await?;
    copy.done.files.fetch_add(1, Relaxed);
    Ok(())
}

/// Copies a file, link or tree.
fn tree<'a>(
    copy: &'a Arc<Copy>,
    from: Origin,
    to: Destination,
    tasks: &'a mut Tasks,
) -> Pin<Box<dyn Future<Output = Outcome> + 'a>> {
    Box::pin(async move {
        if copy.stop.is_asked() {
            return Err(Failure::interrupted());
        }
        match from.kind() {
            Kind::Directory if !copy.recursive => Err(Failure::new(format!(
                "{}: is a directory; -r copies it",
                from.path()
            ))),
            Kind::Directory => {
                // Read the source before the target directory is made.
                let children = from.children(&copy.client).await;
                let Some(children) = copy.unread(children)? else {
                    return Ok(());
                };
                let made = to.directory(&copy.client, from.mode()).await?;
                if is_same(from.node(), made.node()) {
                    let message = format!("{}: cannot be copied into itself", from.path());
                    return Err(Failure::new(message));
                }
                for (name, child) in children {
                    if is_same(child.node(), made.node()) {
                        continue;
                    }
                    match made.child(name) {
                        Some(to) => tree(copy, child, to, tasks).await?,
                        None => copy.say(&child, "not a name for a file"),
                    }
                }
                made.finish(from.mode())
            }
            Kind::Link => {
                let text = from.link_text(&copy.client).await;
                match copy.unread(text)? {
                    Some(text) => to.link(&copy.client, text).await,
                    None => Ok(()),
                }
            }
            Kind::File => {
                copy.progress.extend(from.length());
                let copy = copy.clone();
                tasks
                    .start(async move { file(&copy, &from, &to).await })
                    .await
            }
            Kind::Other(what) => {
                copy.say(&from, what);
                Ok(())
            }
            Kind::Unknown(code) => {
                let failure = Failure::new(format!("{}: {code}", from.path()));
                copy.unread(Err(failure)).map(|_: Option<()>| ())
            }
        }
    })
}

async fn file(copy: &Copy, from: &Origin, to: &Destination) -> Outcome {
    copy.progress.name(last_name(&to.path())?);
    let length = from.length();
    // Open the source before the target file is truncated.
    let source = from.open_by(&copy.client, 0..length, copy.streams);
    let Some(source) = copy.unread(copy.unless_stopped(source).await)? else {
        return Ok(());
    };
    let modified = copy.preserve.then(|| from.modified());
    let how = Opening {
        mode: from.mode(),
        modified,
        resume: copy.resume,
        in_place: copy.in_place,
    };
    let made = to.file(&copy.client, how).await?;
    if is_same(from.node(), made.target()) {
        to.give_up(&copy.client, &made).await;
        return Err(Failure::new(format!(
            "{}: is the same file as {}",
            from.path(),
            to.path()
        )));
    }
    let mut unread = false;
    let filled = fill(copy, from, to, &made, source, &mut unread).await;
    if filled.is_err() {
        copy.gave_up(to.give_up(&copy.client, &made).await);
    }
    if unread {
        if copy.unread(filled)?.is_none() {
            return Ok(());
        }
    } else {
        filled?;
    }
    if copy.verify {
        copy.unless_stopped(verify(copy, from, to, &made)).await?;
    }
    to.complete(&copy.client, &made).await?;
    copy.done.files.fetch_add(1, Relaxed);
    Ok(())
}

/// Fills a file that was made, or that exists. With `--resume` it continues where an earlier copy
/// was interrupted. If it fails because the source cannot be read, it sets `unread`.
async fn fill<'a>(
    copy: &'a Copy,
    from: &'a Origin,
    to: &Destination,
    made: &OpenFile,
    mut source: Source<'a>,
    unread: &mut bool,
) -> Outcome {
    let length = from.length();
    let mut begin = 0;
    if copy.resume {
        let there = to.look(&copy.client, made).await?;
        let begins = compare::resume_position(&copy.client, from, &there);
        begin = copy.unless_stopped(begins).await?;
        if begin > 0 {
            let rest = from.open_by(&copy.client, begin..length, copy.streams);
            source = copy.unless_stopped(rest).await?;
            copy.progress.skip(begin);
            copy.done.resumed.fetch_add(begin, Relaxed);
        }
    }
    let nothing_to_do = length == begin && made.length() == length && made.node().is_some();
    if nothing_to_do {
        return Ok(());
    }
    let what = Filling {
        range: begin..length,
        shape: copy.layout,
        stop: &copy.stop,
    };
    let step = |step| copy.step(to, step);
    let mut watched = Watched::new(&mut source);
    let filled = to.fill_range(&copy.client, made, &mut watched, what, step);
    let filled = filled.await;
    *unread = watched.failed;
    filled
}

/// Reads both files again, and reports where they differ.
async fn verify(copy: &Copy, from: &Origin, to: &Destination, made: &OpenFile) -> Outcome {
    let there = to.look(&copy.client, made).await?;
    let length = from.length();
    copy.progress.extend(length);
    let progress = |bytes| copy.progress.add(bytes);
    let differs = match there.length() == length {
        true => compare::difference(&copy.client, from, &there, 0, length, progress).await?,
        false => Some(length.min(there.length())),
    };
    match differs {
        None => Ok(()),
        Some(position) => Err(Failure::new(format!(
            "{}: differs from {} at byte {position} or after it",
            to.path(),
            from.path()
        ))),
    }
}

fn is_same(a: Option<&Node>, b: Option<&Node>) -> bool {
    a.zip(b)
        .is_some_and(|(a, b)| a.fid == b.fid && a.volume.cell == b.volume.cell)
}

/// The directory at a path, or `None` if the path is not a directory.
async fn existing_directory(client: &Client, path: &str) -> Outcome<Option<Directory>> {
    if !is_afs(path) {
        let path = Path::new(path);
        return Ok(path.is_dir().then(|| Directory::Local(path.to_owned())));
    }
    match client.find(path, Follow::ALL).await {
        Ok(node) if node.is_directory() => {
            let names = Names::read(client, &node).await;
            Ok(Some(Directory::Afs(Arc::new(node), path.to_owned(), names)))
        }
        Ok(_) => Ok(None),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The target for a path that is not a directory.
async fn new_name(client: &Client, path: &str) -> Outcome<Destination> {
    if !is_afs(path) {
        return Ok(Destination::Local(PathBuf::from(path)));
    }
    let (parent, name) = split_last(path)?;
    let parent = client.find(parent, Follow::ALL).await?;
    Ok(Destination::Afs(AfsDestination {
        names: Names::read(client, &parent).await,
        parent: Arc::new(parent),
        name: name.to_owned().into(),
        path: path.to_owned(),
    }))
}

/// The last component of a path of either kind.
fn last_name(path: &str) -> Outcome<&str> {
    let name = path
        .trim_end_matches('/')
        .rsplit('/')
        .next()
        .unwrap_or_default();
    if name.is_empty() || name == ".." || name == "." {
        return Err(Failure::usage(format!(
            "{path}: cannot derive a name for the copy"
        )));
    }
    Ok(name)
}
