//! Stores of files that are in objects, or go there.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use cellar_rpc::{IncomingCall, blocking};
use cellar_volume::{Error, VnodeStatus};

use super::local::{commit, push};
use super::permitted::{PermittedStore, schedule_object_removal};
use super::{StoreRequest, gather};
use crate::abort_map::Refusal;
use crate::access::Access;
use crate::objects::policies::StorageDecision;
use crate::objects::store::{self, Replayed, Source, Storing};
use crate::rxafs::common::{Touched, change, finish, run};
use crate::server::Server;
use crate::session::Session;

/// A store into a file that is in objects, or goes there.
pub(super) async fn into_objects(
    server: &Arc<Server>,
    session: &Session,
    asked: StoreRequest,
    allowed: PermittedStore,
    bytes: &mut impl Source,
) -> Result<(VnodeStatus, Access), Refusal> {
    let allowed = Arc::new(allowed);
    let place = {
        let (server, session, allowed) = (server.clone(), session.clone(), allowed.clone());
        run(&server.clone(), move || {
            allowed.place(&server, &session, &asked)
        })
        .await?
    };
    // The file has moved back to this server in the meantime; the next attempt finds it there.
    let StorageDecision::Objects(wanted) = place else {
        return Err(Refusal::Busy);
    };
    let (volume, spec) = (&allowed.attached.volume, &allowed.spec);
    let mut bytes = Replayed::new(bytes);
    let mut is_first = true;
    let stored = loop {
        let storing = Storing::begin(server, volume, asked.fid, &wanted, spec, asked.length);
        let Some(storing) = storing.await? else {
            return store_locally(server, session, asked, &allowed, &mut bytes).await;
        };
        let is_new = !storing.goes_on;
        match storing.write(spec, asked.length, &mut bytes).await {
            // A device failed that was healthy before. There may be other devices.
            Err(Refusal::Objects(_)) if is_new && is_first && bytes.rewind() => is_first = false,
            outcome => break Arc::new(outcome?),
        }
    };
    let is_refused = Arc::new(AtomicBool::new(false));
    let work = {
        let (session, allowed, stored) = (session.clone(), allowed.clone(), stored.clone());
        let is_refused = is_refused.clone();
        move || {
            let changed = stored.commit(&allowed.spec, session.context());
            let refused = changed.as_ref().is_err_and(store::is_refused_here);
            is_refused.store(refused, Ordering::Release);
            let changed = match changed {
                Err(Error::Stale(_)) => return Err(Refusal::Busy),
                changed => changed?,
            };
            allowed.count(&session);
            Ok((changed, Touched::changed([asked.fid])))
        }
    };
    let changed = change(server, session, work).await;
    if is_refused.load(Ordering::Acquire) {
        stored.give_up(server);
    }
    let status = changed?;
    stored.finish_store(server);
    Ok((status, allowed.access))
}

/// A store of a file for which there are no devices: the file stays on this server.
async fn store_locally(
    server: &Arc<Server>,
    session: &Session,
    asked: StoreRequest,
    allowed: &PermittedStore,
    bytes: &mut impl Source,
) -> Result<(VnodeStatus, Access), Refusal> {
    let (volume, spec) = (allowed.attached.volume.clone(), allowed.spec);
    let mut store = blocking(move || volume.begin_store(asked.fid, &spec, asked.length)).await?;
    while store.missing() > 0 {
        let piece = bytes.next().await?.ok_or(Refusal::StoppedSending)?;
        store = blocking(move || push(store, vec![piece])).await?;
    }
    let (changed, pending) = commit(server, session, asked.fid, store, Vec::new()).await?;
    allowed.count(session);
    let status = finish(server, changed, pending).await?;
    schedule_object_removal(server, asked.fid, allowed);
    Ok((status, allowed.access))
}

/// Bytes that are all present.
pub(super) struct Gathered(VecDeque<Bytes>);

impl Gathered {
    pub(super) fn new(data: &[Bytes]) -> Self {
        Self(data.iter().cloned().collect())
    }
}

impl Source for Gathered {
    async fn next(&mut self) -> Result<Option<Bytes>, Refusal> {
        Ok(self.0.pop_front())
    }
}

/// Bytes as the client sends them, after the ones that were gathered before.
pub(super) struct Arriving<'a> {
    call: &'a mut IncomingCall,
    left: &'a mut u64,
    gathered: VecDeque<Bytes>,
}

impl<'a> Arriving<'a> {
    pub(super) fn new(call: &'a mut IncomingCall, left: &'a mut u64, gathered: Vec<Bytes>) -> Self {
        Self {
            call,
            left,
            gathered: gathered.into(),
        }
    }
}

impl Source for Arriving<'_> {
    async fn next(&mut self) -> Result<Option<Bytes>, Refusal> {
        if self.gathered.is_empty() {
            self.gathered = gather(self.call, self.left, 1).await?.into();
        }
        Ok(self.gathered.pop_front())
    }
}
