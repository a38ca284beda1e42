//! Stores of bytes on this server: in one step, or in pieces as they arrive.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use cellar_rpc::{IncomingCall, blocking};
use cellar_volume::{Changed, Error, Store, VnodeStatus};
use cellar_wire::ids::Fid;

use super::in_objects::{Arriving, Gathered, into_objects};
use super::permitted::{PermittedStore, check, schedule_object_removal};
use super::{StoreRequest, gather};
use crate::abort_map::Refusal;
use crate::access::Access;
use crate::callback::Pending;
use crate::limits::{OBJECT_BEGIN_BYTES, STORE_PIECE_BYTES};
use crate::objects::loaded_lists::retry_when_loaded;
use crate::objects::policies::StorageDecision;
use crate::rxafs::common::{Touched, collect, finish, run};
use crate::server::Server;
use crate::session::Session;

/// A store of few bytes, which are gathered first.
pub(super) async fn small(
    server: &Arc<Server>,
    call: &mut IncomingCall,
    session: &Session,
    asked: StoreRequest,
    left: &mut u64,
) -> Result<(VnodeStatus, Access), Refusal> {
    let data = {
        let mut gathered = pin!(gather(call, left, asked.length));
        match poll_fn(|cx| Poll::Ready(gathered.as_mut().poll(cx))).await {
            // All bytes have arrived: the check below is enough.
            Poll::Ready(data) => data?,
            Poll::Pending => {
                let (server, session) = (server.clone(), session.clone());
                run(&server.clone(), move || {
                    check(&server, &session, &asked).map(|_| ())
                })
                .await?;
                gathered.await?
            }
        }
    };
    gathered(server, session, asked, data.into()).await
}

/// The end of an attempt to store all bytes in one step.
enum Attempt {
    Stored(Changed<VnodeStatus>, Pending, Box<PermittedStore>),
    /// The file is in objects, or goes there. Nothing has changed.
    InObjects,
}

/// A store whose bytes are all present.
pub(super) async fn gathered(
    server: &Arc<Server>,
    session: &Session,
    asked: StoreRequest,
    data: Arc<[Bytes]>,
) -> Result<(VnodeStatus, Access), Refusal> {
    let attempt = async || {
        let (inner, session, data) = (server.clone(), session.clone(), data.clone());
        let work = move || {
            // Checked again: rights may have changed while the bytes arrived.
            let allowed = check(&inner, &session, &asked)?;
            if let StorageDecision::Objects(_) = allowed.place(&inner, &session, &asked)? {
                return Ok(Attempt::InObjects);
            }
            let volume = &allowed.attached.volume;
            let stored = volume.store(asked.fid, &allowed.spec, &data, session.context());
            let changed = match stored {
                Err(Error::InObjects(_)) if inner.objects.storage().is_some() => {
                    return Ok(Attempt::InObjects);
                }
                changed => changed?,
            };
            allowed.count(&session);
            let touched = Touched::changed([asked.fid]);
            let pending = collect(&inner, &touched, session.host_slot(), session.now.0);
            Ok(Attempt::Stored(changed, pending, Box::new(allowed)))
        };
        run(server, work).await
    };
    match retry_when_loaded(&server.objects.loaded_lists, attempt).await? {
        Attempt::Stored(changed, pending, allowed) => {
            let status = finish(server, changed, pending).await?;
            schedule_object_removal(server, asked.fid, &allowed);
            Ok((status, allowed.access))
        }
        Attempt::InObjects => {
            let allowed = {
                let (server, session) = (server.clone(), session.clone());
                run(&server.clone(), move || check(&server, &session, &asked)).await?
            };
            let mut bytes = Gathered::new(&data);
            Box::pin(into_objects(server, session, asked, allowed, &mut bytes)).await
        }
    }
}

/// A store of many bytes, which go to the volume in pieces.
pub(super) async fn large(
    server: &Arc<Server>,
    call: &mut IncomingCall,
    session: &Session,
    asked: StoreRequest,
    left: &mut u64,
) -> Result<(VnodeStatus, Access), Refusal> {
    let begin = async || {
        let (server, session) = (server.clone(), session.clone());
        run(&server.clone(), move || {
            let allowed = check(&server, &session, &asked)?;
            if let StorageDecision::Objects(_) = allowed.place(&server, &session, &asked)? {
                return Ok((None, allowed));
            }
            let volume = &allowed.attached.volume;
            let store = volume.begin_store(asked.fid, &allowed.spec, asked.length)?;
            Ok((Some(store), allowed))
        })
        .await
    };
    let (store, allowed) = retry_when_loaded(&server.objects.loaded_lists, begin).await?;
    let Some(mut store) = store else {
        // The first bytes are gathered before the lock, so that a slow client does not block other
        // stores. A fast client does not wait for the end of its bytes either.
        let begun = gather(call, left, OBJECT_BEGIN_BYTES).await?;
        let mut bytes = Arriving::new(call, left, begun);
        return Box::pin(into_objects(server, session, asked, allowed, &mut bytes)).await;
    };
    loop {
        let pieces = gather(call, left, STORE_PIECE_BYTES as u64).await?;
        if *left == 0 {
            let (changed, pending) = commit(server, session, asked.fid, store, pieces).await?;
            allowed.count(session);
            let status = finish(server, changed, pending).await?;
            schedule_object_removal(server, asked.fid, &allowed);
            return Ok((status, allowed.access));
        }
        store = blocking(move || push(store, pieces)).await?;
    }
}

pub(super) fn push(mut store: Store, pieces: Vec<Bytes>) -> Result<Store, Refusal> {
    for piece in pieces {
        store.push(piece)?;
    }
    Ok(store)
}

/// The last pieces, the change, and the collection of the promises that it breaks, in one step.
pub(super) async fn commit(
    server: &Arc<Server>,
    session: &Session,
    fid: Fid,
    store: Store,
    pieces: Vec<Bytes>,
) -> Result<(Changed<VnodeStatus>, Pending), Refusal> {
    let (server, session) = (server.clone(), session.clone());
    blocking(move || {
        let changed = match push(store, pieces)?.commit(session.context()) {
            // The file moved to objects while the bytes arrived; the next attempt finds it there.
            Err(Error::InObjects(_)) if server.objects.storage().is_some() => {
                return Err(Refusal::Busy);
            }
            changed => changed?,
        };
        let touched = Touched::changed([fid]);
        let pending = collect(&server, &touched, session.host_slot(), session.now.0);
        Ok((changed, pending))
    })
    .await
}
