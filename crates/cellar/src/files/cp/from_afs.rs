//! Copies out of AFS, to this machine.

use std::fs;
use std::future::Future;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use cellar_client::{Follow, Node};

use super::{Copy, Tasks, last_name};
use crate::failure::{Failure, Outcome};
use crate::files::{is_afs, join, printable};

type Walk<'a> = Pin<Box<dyn Future<Output = Outcome> + 'a>>;

pub(super) async fn copy(copy: &Arc<Copy>, sources: &[String], target: &str) -> Outcome {
    let into_directory = Path::new(target).is_dir();
    if !into_directory && (sources.len() > 1 || target.ends_with('/')) {
        return Err(Failure::new(format!(
            "{target}: is no directory that is there"
        )));
    }
    let tasks = tokio::task::LocalSet::new();
    tasks
        .run_until(async {
            let mut tasks = Tasks::new();
            for source in sources {
                if !is_afs(source) {
                    let message = "this machine's 'cp' copies files that are not below /afs";
                    return Err(Failure::usage(format!("{source}: {message}")));
                }
                let to = if into_directory {
                    Path::new(target).join(last_name(source)?)
                } else {
                    PathBuf::from(target)
                };
                let node = copy.client.find(source, Follow::ALL).await?;
                tree(copy, node, source.clone(), to, &mut tasks).await?;
            }
            tasks.finish().await
        })
        .await
}

fn tree<'a>(
    copy: &'a Arc<Copy>,
    from: Node,
    from_path: String,
    to: PathBuf,
    tasks: &'a mut Tasks,
) -> Walk<'a> {
    Box::pin(async move {
        let at = |cause| Failure::new(format!("{}: {cause}", to.display()));
        if from.is_directory() {
            if !copy.recursive {
                return Err(Failure::new(format!(
                    "{from_path}: is a directory; -r copies it"
                )));
            }
            match fs::create_dir(&to) {
                Err(cause) if cause.kind() == io::ErrorKind::AlreadyExists && to.is_dir() => {}
                other => other.map_err(at)?,
            }
            let entries = copy.client.read_directory(&from).await?;
            let fids: Vec<_> = entries.iter().map(|entry| entry.fid).collect();
            let statuses = copy.client.statuses(&from, &fids).await?;
            for (entry, status) in entries.into_iter().zip(statuses) {
                let child = Node {
                    volume: from.volume.clone(),
                    fid: entry.fid,
                    status,
                };
                let child_path = join(&from_path, &printable(&entry.name));
                // A server must not make us write outside of the target.
                if entry.name.contains(&b'/') || &entry.name[..] == b".." {
                    let message = format!("{child_path}: not a name for a file; left out");
                    copy.progress.say(&message);
                    continue;
                }
                let child_to = to.join(std::ffi::OsStr::from_bytes(&entry.name));
                tree(copy, child, child_path, child_to, tasks).await?;
            }
            let mode = fs::Permissions::from_mode(from.status.unix_mode & 0o777 | 0o700);
            fs::set_permissions(&to, mode).map_err(at)
        } else if from.is_mount_point() {
            copy.progress
                .say(&format!("{from_path}: a mount point; left out"));
            Ok(())
        } else if from.is_link() {
            let target = copy.client.link_text(&from).await?;
            if fs::symlink_metadata(&to).is_ok_and(|about| !about.is_dir()) {
                fs::remove_file(&to).map_err(at)?;
            }
            std::os::unix::fs::symlink(std::ffi::OsStr::from_bytes(&target), &to).map_err(at)
        } else {
            copy.progress.extend(from.status.length);
            let copy = copy.clone();
            tasks
                .start(async move { file(&copy, &from, &from_path, &to).await })
                .await
        }
    })
}

async fn file(copy: &Copy, from: &Node, from_path: &str, to: &Path) -> Outcome {
    let at = |cause: io::Error| Failure::new(format!("{}: {cause}", to.display()));
    copy.progress.name(last_name(from_path)?);
    let mode = from.status.unix_mode & 0o777;
    let mut options = fs::OpenOptions::new();
    let mut out = options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(mode)
        .open(to)
        .map_err(at)?;
    let mut fetch = copy.client.fetch(from, 0, u64::MAX).await?.named(from_path);
    while let Some(bytes) = fetch.next().await? {
        out.write_all(&bytes).map_err(at)?;
        copy.progress.add(bytes.len() as u64);
    }
    if copy.preserve {
        let seconds = u64::from(from.status.client_mod_time.0);
        out.set_modified(UNIX_EPOCH + Duration::from_secs(seconds))
            .map_err(at)?;
    }
    Ok(())
}
