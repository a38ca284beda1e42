//! The identity of an archive: whose it is, and whether it has been used.
//!
//! 1. `cellar-archive.json` names the cell and the archive. `create` writes it, and nothing
//!    rewrites it.
//! 2. `sessions/N` is an object for the N-th session that wrote. A session begins with the first
//!    put or removal after an open. The highest N is the archive's counter. Several processes may
//!    begin sessions at the same time: each creates its number, and a number in use is skipped.
//! 3. The caller keeps the counter and the number of copies that it knows. If the archive has a
//!    lower counter, or no copy although the caller knows some, it has lost its contents. The usual
//!    reason is a file system that is not mounted.

use bytes::Bytes;
use object_store::path::Path;
use serde::{Deserialize, Serialize};

use crate::backend::{Backend, make_directory};
use crate::{ArchiveId, CellId, Error, Location, Settings};

/// The name of the identity object.
const NAME: &str = "cellar-archive.json";
/// The prefix of the sessions.
const SESSIONS: &str = "sessions";
/// The prefix of the copies.
pub(crate) const OBJECTS: &str = "objects";
/// The form of the identity object.
const FORMAT: u32 = 1;
/// Sessions that are listed, at most. Older ones are removed when one begins, so there are few.
const SESSIONS_MAX: usize = 10_000;

/// The identity object of an archive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The form of this object: 1.
    format: u32,
    /// The cell that owns the archive.
    pub cell: CellId,
    /// The name of the cell at that time, for the reader.
    pub cell_name: String,
    /// The archive's own id.
    pub archive: ArchiveId,
    /// The time of the creation, in seconds since 1970.
    pub created: u64,
}

/// The archive that the caller expects at a location.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// The caller's cell.
    pub cell: CellId,
    /// The archive.
    pub archive: ArchiveId,
    /// The highest counter that the caller has seen ([`crate::Archive::session`]); 0 if none.
    pub session: u64,
    /// Copies that the caller knows in this archive.
    pub copies: u64,
}

fn session_path(number: u64) -> Path {
    Path::from_iter([SESSIONS, &number.to_string()])
}

/// Creates the archive. Returns its identity.
pub(crate) async fn create(
    location: &Location,
    settings: Settings,
    cell: CellId,
    cell_name: &str,
    created: u64,
) -> Result<Identity, Error> {
    let backend = match Backend::open(location, settings).await? {
        Some(backend) => backend,
        None => {
            if let Location::Directory(path) = location {
                make_directory(path.clone(), settings).await?;
            }
            let opened = Backend::open(location, settings).await?;
            opened.ok_or_else(|| Error::Down("the new directory disappeared".to_owned()))?
        }
    };
    if let Some(found) = read(&backend).await? {
        let owner = match found.cell == cell {
            true => "this cell".to_owned(),
            false => format!("cell {} ({})", found.cell_name, found.cell),
        };
        let reason = format!("archive {} of {owner} is there", found.archive);
        return Err(Error::InUse(reason));
    }
    if !backend.is_empty().await? {
        return Err(Error::InUse("the location is not empty".to_owned()));
    }
    let identity = Identity {
        format: FORMAT,
        cell,
        cell_name: cell_name.to_owned(),
        archive: ArchiveId::random(),
        created,
    };
    let text = serde_json::to_vec_pretty(&identity).map_err(|e| Error::Identity(e.to_string()))?;
    match backend.create_small(&Path::from(NAME), text.into()).await? {
        true => Ok(identity),
        false => Err(Error::InUse("another process created one".to_owned())),
    }
}

/// The identity at a location, if there is one.
pub(crate) async fn read(backend: &Backend) -> Result<Option<Identity>, Error> {
    let Some(bytes) = backend.small(&Path::from(NAME)).await? else {
        return Ok(None);
    };
    let identity: Identity =
        serde_json::from_slice(&bytes).map_err(|error| Error::Identity(error.to_string()))?;
    if identity.format != FORMAT {
        let form = identity.format;
        return Err(Error::Identity(format!(
            "it has form {form}: use a newer program"
        )));
    }
    Ok(Some(identity))
}

/// Compares the archive at a location with the one that the caller expects. Writes nothing.
pub(crate) async fn check(backend: &Backend, expected: &Expected) -> Result<Identity, Error> {
    let was_used = expected.session > 0 || expected.copies > 0;
    let Some(identity) = read(backend).await? else {
        return Err(match was_used {
            true => Error::EmptyThoughUsed("it has no identity; is its file system mounted?"),
            false => Error::NotAnArchive,
        });
    };
    if identity.cell != expected.cell {
        return Err(Error::Foreign {
            found: identity.cell,
            wanted: expected.cell,
        });
    }
    if identity.archive != expected.archive {
        return Err(Error::OtherArchive {
            found: identity.archive,
            wanted: expected.archive,
        });
    }
    let session = newest_session(backend).await?;
    if session < expected.session {
        return Err(match session {
            0 => Error::EmptyThoughUsed("its sessions are gone"),
            found => Error::Older {
                found,
                known: expected.session,
            },
        });
    }
    let copies = Path::from_iter([OBJECTS, &expected.cell.to_string()]);
    if expected.copies > 0 && backend.list(&copies, 1).await?.is_empty() {
        return Err(Error::EmptyThoughUsed("its copies are gone"));
    }
    Ok(identity)
}

/// Compares the identity with the one at the time of the open. A file system that was unmounted
/// since then is noticed.
pub(crate) async fn check_again(backend: &Backend, identity: &Identity) -> Result<(), Error> {
    match read(backend).await? {
        Some(found) if found == *identity => Ok(()),
        Some(found) => Err(Error::OtherArchive {
            found: found.archive,
            wanted: identity.archive,
        }),
        None => Err(Error::EmptyThoughUsed(
            "its identity disappeared; was its file system unmounted?",
        )),
    }
}

/// The archive's counter: 0 if no session has written.
pub(crate) async fn newest_session(backend: &Backend) -> Result<u64, Error> {
    Ok(sessions(backend).await?.into_iter().max().unwrap_or(0))
}

async fn sessions(backend: &Backend) -> Result<Vec<u64>, Error> {
    let found = backend.list(&Path::from(SESSIONS), SESSIONS_MAX).await?;
    let numbers = found
        .iter()
        .filter_map(|path| path.filename()?.parse().ok());
    Ok(numbers.collect())
}

/// Begins a session: returns its number, which is higher than all before.
pub(crate) async fn begin_session(backend: &Backend) -> Result<u64, Error> {
    loop {
        let before = sessions(backend).await?;
        let number = before.iter().max().unwrap_or(&0).saturating_add(1);
        if !backend
            .create_small(&session_path(number), Bytes::new())
            .await?
        {
            continue;
        }
        // A higher number that appeared meanwhile means that `number` may have been used before.
        if newest_session(backend).await? > number {
            backend.remove(&session_path(number)).await?;
            continue;
        }
        for older in before {
            backend.remove(&session_path(older)).await?;
        }
        return Ok(number);
    }
}
