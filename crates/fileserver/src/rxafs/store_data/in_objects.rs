//! Stores of files that are in objects, or go there.

use std::sync::Arc;

use cellar_fileobjects::{Source, StorageDecision, WriteOutcome};
use cellar_volume::VnodeStatus;

use super::StoreRequest;
use super::permitted::check;
use super::source::StoreBytes;
use crate::abort_map::Refusal;
use crate::access::Access;
use crate::rxafs::common::{commit_objects, run};
use crate::services::FileServices;
use crate::session::Session;

/// The end of an attempt to store into objects.
pub(super) enum ObjectStore {
    Done(VnodeStatus, Access),
    /// The file has moved back to this server, or stays there because no devices take it. Nothing
    /// has changed.
    Here,
    /// Another store changed the file meanwhile. Nothing has changed.
    Overtaken,
}

/// A store into a file that is in objects, or goes there.
pub(super) async fn into_objects(
    services: &Arc<FileServices>,
    session: &Session,
    asked: StoreRequest,
    bytes: &mut StoreBytes<'_>,
) -> Result<ObjectStore, Refusal> {
    restart(bytes)?;
    let (allowed, place) = {
        let (inner, session) = (services.clone(), session.clone());
        run(&services.callbacks, move || {
            let allowed = check(&inner, &session, &asked)?;
            let place = allowed.place(&inner.objects, &session, &asked)?;
            Ok((allowed, place))
        })
        .await?
    };
    let StorageDecision::Objects(wanted) = place else {
        return Ok(ObjectStore::Here);
    };
    let (volume, spec) = (&allowed.attached.volume, &allowed.spec);
    let (objects, whole) = (&services.objects, (spec, asked.length));
    let written = objects.write(volume, asked.fid, &wanted, whole, bytes);
    let stored = match written.await? {
        WriteOutcome::Written(stored) => Arc::new(*stored),
        WriteOutcome::NoDevices => return Ok(ObjectStore::Here),
        WriteOutcome::Overtaken => return Ok(ObjectStore::Overtaken),
    };
    let committed = commit_objects(&services.callbacks, session, stored, *spec).await?;
    Ok(match committed {
        Some(status) => ObjectStore::Done(status, allowed.access),
        None => ObjectStore::Overtaken,
    })
}

/// Begins again with the first byte. If the bytes are gone, the client must send them again.
pub(super) fn restart(bytes: &mut StoreBytes<'_>) -> Result<(), Refusal> {
    match bytes.rewind() {
        true => Ok(()),
        false => Err(Refusal::Busy),
    }
}
