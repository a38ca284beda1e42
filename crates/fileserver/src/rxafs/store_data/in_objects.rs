//! Stores of files that are in objects, or go there.

use std::sync::Arc;

use cellar_volume::{Changed, Error, VnodeStatus};

use super::StoreRequest;
use super::permitted::check;
use super::source::StoreBytes;
use crate::abort_map::Refusal;
use crate::access::Access;
use crate::callback::Pending;
use crate::objects::policies::StorageDecision;
use crate::objects::store::{self, CommitOutcome, Source, WriteOutcome};
use crate::rxafs::common::{Touched, collect, finish, run};
use crate::server::Server;
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

/// The end of the change of the vnode.
enum Commit {
    Done(Changed<VnodeStatus>, Pending),
    Overtaken,
    Refused(Error),
}

/// A store into a file that is in objects, or goes there.
pub(super) async fn into_objects(
    server: &Arc<Server>,
    session: &Session,
    asked: StoreRequest,
    bytes: &mut StoreBytes<'_>,
) -> Result<ObjectStore, Refusal> {
    restart(bytes)?;
    let (allowed, place) = {
        let (inner, session) = (server.clone(), session.clone());
        run(server, move || {
            let allowed = check(&inner, &session, &asked)?;
            let place = allowed.place(&inner, &session, &asked)?;
            Ok((Arc::new(allowed), place))
        })
        .await?
    };
    let StorageDecision::Objects(wanted) = place else {
        return Ok(ObjectStore::Here);
    };
    let (volume, spec) = (&allowed.attached.volume, &allowed.spec);
    let written = store::write(
        server,
        volume,
        asked.fid,
        &wanted,
        (spec, asked.length),
        bytes,
    );
    let stored = match written.await? {
        WriteOutcome::Written(stored) => Arc::new(*stored),
        WriteOutcome::NoDevices => return Ok(ObjectStore::Here),
        WriteOutcome::Overtaken => return Ok(ObjectStore::Overtaken),
    };
    let work = {
        let (inner, session) = (server.clone(), session.clone());
        let (allowed, stored) = (allowed.clone(), stored.clone());
        move || match stored.commit(&allowed.spec, session.context()) {
            Ok(CommitOutcome::Done(changed)) => {
                allowed.count(&session);
                let touched = Touched::changed([asked.fid]);
                let pending = collect(&inner, &touched, session.host_slot(), session.now.0);
                Ok(Commit::Done(changed, pending))
            }
            Ok(CommitOutcome::Overtaken) => Ok(Commit::Overtaken),
            Err(Error::WouldBlock) => Err(Error::WouldBlock.into()),
            Err(error) => Ok(Commit::Refused(error)),
        }
    };
    match run(server, work).await? {
        Commit::Done(changed, pending) => {
            let status = finish(server, changed, pending).await?;
            stored.finish_store(server);
            Ok(ObjectStore::Done(status, allowed.access))
        }
        Commit::Overtaken => {
            stored.give_up(server);
            Ok(ObjectStore::Overtaken)
        }
        Commit::Refused(error) => {
            if store::is_refused_here(&error) {
                stored.give_up(server);
            }
            Err(error.into())
        }
    }
}

/// Begins again with the first byte. If the bytes are gone, the client must send them again.
pub(super) fn restart(bytes: &mut StoreBytes<'_>) -> Result<(), Refusal> {
    match bytes.rewind() {
        true => Ok(()),
        false => Err(Refusal::Busy),
    }
}
