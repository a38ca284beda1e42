//! Copies into AFS, from this machine or from AFS.

use std::fs::{self, File, Metadata};
use std::future::Future;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use cellar_client::path::split_last;
use cellar_client::{Client, Error, Follow, Node};
use cellar_wire::ids::AfsTime;
use cellar_wire::rxafs::AfsStoreStatus;

use super::source::{AfsSource, LocalSource};
use super::{Copy, Tasks, existing_directory, last_name};
use crate::failure::{Failure, Outcome};
use crate::files::{is_afs, join, printable};

type Walk<'a> = Pin<Box<dyn Future<Output = Outcome> + 'a>>;

pub(super) async fn copy(copy: &Arc<Copy>, sources: &[String], target: &str) -> Outcome {
    let directory = existing_directory(&copy.client, target).await?;
    if directory.is_none() && (sources.len() > 1 || target.ends_with('/')) {
        return Err(Failure::new(format!(
            "{target}: is no directory that is there"
        )));
    }
    let tasks = tokio::task::LocalSet::new();
    tasks
        .run_until(async {
            let mut tasks = Tasks::new();
            for source in sources {
                // Where the copy of this source goes: into the directory, or to the name given.
                let (parent, name, path) = match &directory {
                    Some(node) if source != "-" => {
                        let name = last_name(source)?;
                        (node.clone(), name.to_owned(), join(target, name))
                    }
                    Some(_) => {
                        return Err(Failure::usage("'-' needs the name of a file to write to"));
                    }
                    None => {
                        let (parent, name) = split_last(target)?;
                        let node = copy.client.find(parent, Follow::ALL).await?;
                        (node, name.to_owned(), target.to_owned())
                    }
                };
                let place = Place {
                    parent: Arc::new(parent),
                    name: name.into(),
                    path,
                };
                if source == "-" {
                    standard_input(copy, &place).await?;
                } else if is_afs(source) {
                    let node = copy.client.find(source, Follow::ALL).await?;
                    within_afs(copy, node, source.clone(), place, &mut tasks).await?;
                } else {
                    local(copy, PathBuf::from(source), place, true, &mut tasks).await?;
                }
            }
            tasks.finish().await
        })
        .await
}

/// Where something is to be made.
#[derive(Clone)]
struct Place {
    parent: Arc<Node>,
    name: Bytes,
    path: String,
}

async fn standard_input(copy: &Arc<Copy>, place: &Place) -> Outcome {
    let node = file(&copy.client, place, 0o644, None).await?;
    let progress = |bytes| copy.progress.add(bytes);
    let mut source = LocalSource::standard_input();
    copy.client
        .store(&node, &place.path, &mut source, None, progress)
        .await?;
    Ok(())
}

/// Copies a local file, link or tree. `top` is a source as it was named: a link there is followed.
fn local<'a>(
    copy: &'a Arc<Copy>,
    from: PathBuf,
    place: Place,
    top: bool,
    tasks: &'a mut Tasks,
) -> Walk<'a> {
    Box::pin(async move {
        let at = |cause| Failure::new(format!("{}: {cause}", from.display()));
        let about = if top {
            fs::metadata(&from)
        } else {
            fs::symlink_metadata(&from)
        };
        let about = about.map_err(at)?;
        let kind = about.file_type();
        if kind.is_dir() {
            if !copy.recursive {
                let message = format!("{}: is a directory; -r copies it", from.display());
                return Err(Failure::new(message));
            }
            let node = Arc::new(directory(&copy.client, &place, mode(&about)).await?);
            let mut names: Vec<_> = fs::read_dir(&from)
                .map_err(at)?
                .collect::<Result<_, _>>()
                .map_err(at)?;
            names.sort_by_key(fs::DirEntry::file_name);
            for entry in names {
                let name = Bytes::copy_from_slice(entry.file_name().as_bytes());
                let path = join(&place.path, &printable(&name));
                let child = Place {
                    parent: node.clone(),
                    name,
                    path,
                };
                local(copy, entry.path(), child, false, tasks).await?;
            }
            Ok(())
        } else if kind.is_symlink() {
            let target = fs::read_link(&from).map_err(at)?;
            let target = Bytes::copy_from_slice(target.as_os_str().as_bytes());
            link(&copy.client, &place, target).await
        } else if kind.is_file() {
            copy.progress.extend(about.len());
            let copy = copy.clone();
            tasks
                .start(async move { local_file(&copy, &from, &about, &place).await })
                .await
        } else {
            copy.progress.say(&format!(
                "{}: neither file nor directory; left out",
                from.display()
            ));
            Ok(())
        }
    })
}

async fn local_file(copy: &Copy, from: &Path, about: &Metadata, place: &Place) -> Outcome {
    let at = |cause| Failure::new(format!("{}: {cause}", from.display()));
    copy.progress.name(&printable(&place.name));
    let opened = File::open(from).map_err(at)?;
    let modified = copy
        .preserve
        .then(|| AfsTime(u32::try_from(about.mtime()).unwrap_or(0)));
    let node = file(&copy.client, place, mode(about), modified).await?;
    if about.len() == 0 && node.status.length == 0 {
        return Ok(());
    }
    let progress = |bytes| copy.progress.add(bytes);
    let mut source = LocalSource::file(opened);
    copy.client
        .store(&node, &place.path, &mut source, modified, progress)
        .await?;
    Ok(())
}

/// Copies a file, link or tree of AFS.
fn within_afs<'a>(
    copy: &'a Arc<Copy>,
    from: Node,
    from_path: String,
    place: Place,
    tasks: &'a mut Tasks,
) -> Walk<'a> {
    Box::pin(async move {
        if from.is_directory() {
            if !copy.recursive {
                return Err(Failure::new(format!(
                    "{from_path}: is a directory; -r copies it"
                )));
            }
            let node = Arc::new(directory(&copy.client, &place, from.status.unix_mode).await?);
            if node.fid == from.fid {
                return Err(Failure::new(format!(
                    "{from_path}: cannot be copied into itself"
                )));
            }
            let entries = copy.client.read_directory(&from).await?;
            let fids: Vec<_> = entries.iter().map(|entry| entry.fid).collect();
            let statuses = copy.client.statuses(&from, &fids).await?;
            for (entry, status) in entries.into_iter().zip(statuses) {
                let name = printable(&entry.name);
                let child = Node {
                    volume: from.volume.clone(),
                    fid: entry.fid,
                    status,
                };
                if child.fid == node.fid {
                    continue;
                }
                let child_path = join(&from_path, &name);
                let to = Place {
                    parent: node.clone(),
                    name: entry.name,
                    path: join(&place.path, &name),
                };
                within_afs(copy, child, child_path, to, tasks).await?;
            }
            Ok(())
        } else if from.is_mount_point() {
            copy.progress
                .say(&format!("{from_path}: a mount point; left out"));
            Ok(())
        } else if from.is_link() {
            let target = copy.client.link_text(&from).await?;
            link(&copy.client, &place, target).await
        } else {
            copy.progress.extend(from.status.length);
            let copy = copy.clone();
            tasks
                .start(async move { afs_file(&copy, &from, &from_path, &place).await })
                .await
        }
    })
}

async fn afs_file(copy: &Copy, from: &Node, from_path: &str, place: &Place) -> Outcome {
    copy.progress.name(&printable(&place.name));
    let modified = copy.preserve.then_some(from.status.client_mod_time);
    let node = file(&copy.client, place, from.status.unix_mode, modified).await?;
    if node.fid == from.fid {
        return Err(Failure::new(format!(
            "{from_path}: is the same file as {}",
            place.path
        )));
    }
    let fetch = copy.client.fetch(from, 0, u64::MAX).await?.named(from_path);
    let mut source = AfsSource::new(fetch);
    let progress = |bytes| copy.progress.add(bytes);
    copy.client
        .store(&node, &place.path, &mut source, modified, progress)
        .await?;
    Ok(())
}

fn mode(about: &Metadata) -> u32 {
    about.permissions().mode() & 0o7777
}

/// The file at a place: a new one, or the one that is there, to be overwritten.
async fn file(
    client: &Client,
    place: &Place,
    mode: u32,
    modified: Option<AfsTime>,
) -> Result<Node, Error> {
    let status = AfsStoreStatus {
        unix_mode: Some(mode),
        client_mod_time: modified,
        ..Default::default()
    };
    match client
        .create_file(&place.parent, &place.name, status, &place.path)
        .await
    {
        Err(error) if exists(&error) => there(client, place).await,
        other => other,
    }
}

/// The directory at a place, made if it is not there.
async fn directory(client: &Client, place: &Place, mode: u32) -> Result<Node, Error> {
    let status = AfsStoreStatus {
        unix_mode: Some(mode),
        ..Default::default()
    };
    match client
        .make_dir(&place.parent, &place.name, status, &place.path)
        .await
    {
        Err(error) if exists(&error) => there(client, place).await,
        other => other,
    }
}

async fn link(client: &Client, place: &Place, target: Bytes) -> Outcome {
    let status = super::super::make::new_status(0o777);
    let Place { parent, name, path } = place;
    match client
        .symlink(parent, name, target.clone(), status, path)
        .await
    {
        Err(error) if exists(&error) => {
            client.remove_file(parent, name, path).await?;
            client.symlink(parent, name, target, status, path).await?;
        }
        other => {
            other?;
        }
    }
    Ok(())
}

fn exists(error: &Error) -> bool {
    error.code() == Some(cellar_wire::AbortCode::EEXIST)
}

/// What has the place's name already, through links and mount points.
async fn there(client: &Client, place: &Place) -> Result<Node, Error> {
    let Place { parent, name, path } = place;
    let found = match client.lookup_name(parent, name).await? {
        Some(fid) => Some(client.node(&parent.volume, fid).await?),
        None => None,
    };
    match found {
        Some(node) if !node.is_link() && !node.is_mount_point() => Ok(node),
        // The long way, from the top: it knows how to follow.
        _ => client.find(path, Follow::ALL).await,
    }
}
