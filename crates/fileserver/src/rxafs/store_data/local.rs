//! Stores of bytes on this server: in one step, or in pieces as they arrive.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use cellar_fileobjects::Objects;
use cellar_fileobjects::{Source, StorageDecision};
use cellar_rpc::{IncomingCall, blocking};
use cellar_volume::{Changed, Error, PushedBytes, Store, StoreOutcome, VnodeStatus};
use cellar_wire::ids::Fid;

use super::in_objects::restart;
use super::permitted::{PermittedStore, check, schedule_object_removal};
use super::source::{Arriving, StoreBytes};
use super::{StoreRequest, gather, in_either_place};
use crate::abort_map::Refusal;
use crate::access::Access;
use crate::callback::Pending;
use crate::callbacks::Callbacks;
use crate::callbacks::Touched;
use crate::limits::{OBJECT_BEGIN_BYTES, STORE_PIECE_BYTES};
use crate::rxafs::common::{finish, run, when_loaded};
use crate::services::FileServices;
use crate::session::Session;

/// A store of few bytes, which are gathered first.
pub(super) async fn small(
    services: &Arc<FileServices>,
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
                let (services, session) = (services.clone(), session.clone());
                run(&services.callbacks.clone(), move || {
                    check(&services, &session, &asked).map(|_| ())
                })
                .await?;
                gathered.await?
            }
        }
    };
    gathered(services, session, asked, data.into()).await
}

/// The end of an attempt to store on this server. `B`: the bytes, if the attempt had taken them.
pub(super) enum LocalStore<B> {
    Done(VnodeStatus, Access),
    /// The file is in objects, or goes there. Nothing has changed.
    InObjects(B),
}

/// The end of the change of the vnode.
enum Commit<B> {
    Done(Changed<VnodeStatus>, Pending, Box<PermittedStore>),
    InObjects(B),
}

/// A store whose bytes are all present.
pub(super) async fn gathered(
    services: &Arc<FileServices>,
    session: &Session,
    asked: StoreRequest,
    data: Arc<[Bytes]>,
) -> Result<(VnodeStatus, Access), Refusal> {
    match at_once(services, session, asked, data.clone()).await? {
        LocalStore::Done(status, access) => Ok((status, access)),
        LocalStore::InObjects(()) => {
            let bytes = StoreBytes::Present(data, 0);
            Box::pin(in_either_place(services, session, asked, bytes)).await
        }
    }
}

/// A store on this server whose bytes are all present, in one step.
async fn at_once(
    services: &Arc<FileServices>,
    session: &Session,
    asked: StoreRequest,
    data: Arc<[Bytes]>,
) -> Result<LocalStore<()>, Refusal> {
    let attempt = async || {
        let (inner, session, data) = (services.clone(), session.clone(), data.clone());
        let work = move || {
            // Checked again: rights may have changed while the bytes arrived.
            let allowed = check(&inner, &session, &asked)?;
            if let StorageDecision::Objects(_) = allowed.place(&inner.objects, &session, &asked)? {
                return Ok(Commit::InObjects(()));
            }
            let volume = &allowed.attached.volume;
            let stored = volume.store_here(asked.fid, &allowed.spec, &data, session.context())?;
            let Some(changed) = stored else {
                check_reachable(&inner.objects, asked.fid)?;
                return Ok(Commit::InObjects(()));
            };
            Ok(changed_here(&inner.callbacks, &session, changed, allowed))
        };
        run(&services.callbacks, work).await
    };
    let commit = when_loaded(&services.objects, attempt).await?;
    finish_here(services, commit).await
}

/// A store of many bytes, which go to the volume in pieces.
pub(super) async fn large(
    services: &Arc<FileServices>,
    call: &mut IncomingCall,
    session: &Session,
    asked: StoreRequest,
    left: &mut u64,
) -> Result<(VnodeStatus, Access), Refusal> {
    let begin = async || {
        let (inner, session) = (services.clone(), session.clone());
        run(&services.callbacks, move || {
            let allowed = check(&inner, &session, &asked)?;
            if let StorageDecision::Objects(_) = allowed.place(&inner.objects, &session, &asked)? {
                return Ok(None);
            }
            begin(&inner, asked, allowed)
        })
        .await
    };
    let begun = when_loaded(&services.objects, begin).await?;
    let Some((mut store, allowed)) = begun else {
        // The first bytes are gathered before the lock, so that a slow client does not block other
        // stores. A fast client does not wait for the end of its bytes either.
        let begun = gather(call, left, OBJECT_BEGIN_BYTES).await?;
        let bytes = StoreBytes::Arriving(Arriving::new(call, left, begun));
        return Box::pin(in_either_place(services, session, asked, bytes)).await;
    };
    loop {
        let pieces = gather(call, left, STORE_PIECE_BYTES as u64).await?;
        if *left > 0 {
            store = blocking(move || push(store, pieces)).await?;
            continue;
        }
        return match commit(services, session, store, pieces, allowed).await? {
            LocalStore::Done(status, access) => Ok((status, access)),
            LocalStore::InObjects(pushed) => {
                let bytes = StoreBytes::Pushed(Some(pushed));
                Box::pin(in_either_place(services, session, asked, bytes)).await
            }
        };
    }
}

/// A store on this server of the bytes from a source. Devices do not take the file, or it has moved
/// back here.
pub(super) async fn from_source(
    services: &Arc<FileServices>,
    session: &Session,
    asked: StoreRequest,
    bytes: &mut StoreBytes<'_>,
) -> Result<LocalStore<Option<PushedBytes>>, Refusal> {
    restart(bytes)?;
    let begun = {
        let (inner, session) = (services.clone(), session.clone());
        run(&services.callbacks, move || {
            let allowed = check(&inner, &session, &asked)?;
            begin(&inner, asked, allowed)
        })
        .await?
    };
    let Some((mut store, allowed)) = begun else {
        return Ok(LocalStore::InObjects(None));
    };
    while store.missing() > 0 {
        let piece = bytes.next().await?.ok_or(Refusal::StoppedSending)?;
        store = blocking(move || push(store, vec![piece])).await?;
    }
    let committed = commit(services, session, store, Vec::new(), allowed).await?;
    Ok(match committed {
        LocalStore::Done(status, access) => LocalStore::Done(status, access),
        LocalStore::InObjects(pushed) => LocalStore::InObjects(Some(pushed)),
    })
}

/// Begins a permitted store on this server. `None` for a file in objects.
fn begin(
    services: &FileServices,
    asked: StoreRequest,
    allowed: PermittedStore,
) -> Result<Option<(Store, PermittedStore)>, Refusal> {
    let volume = &allowed.attached.volume;
    let store = volume.begin_store(asked.fid, &allowed.spec, asked.length)?;
    if store.is_none() {
        check_reachable(&services.objects, asked.fid)?;
    }
    Ok(store.map(|store| (store, allowed)))
}

/// Checks that this server can store a file in objects.
fn check_reachable(objects: &Objects, fid: Fid) -> Result<(), Refusal> {
    match objects.is_used() {
        true => Ok(()),
        false => Err(Refusal::Store(Error::InObjects(fid))),
    }
}

fn push(mut store: Store, pieces: Vec<Bytes>) -> Result<Store, Refusal> {
    for piece in pieces {
        store.push(piece)?;
    }
    Ok(store)
}

/// The last pieces, the change, and the collection of the promises that it breaks, in one step.
async fn commit(
    services: &Arc<FileServices>,
    session: &Session,
    store: Store,
    pieces: Vec<Bytes>,
    allowed: PermittedStore,
) -> Result<LocalStore<PushedBytes>, Refusal> {
    let commit = {
        let (services, session) = (services.clone(), session.clone());
        blocking(move || {
            let outcome = push(store, pieces)?.commit(session.context())?;
            match outcome {
                StoreOutcome::Stored(changed) => Ok::<_, Refusal>(changed_here(
                    &services.callbacks,
                    &session,
                    changed,
                    allowed,
                )),
                StoreOutcome::InObjects(pushed) => {
                    check_reachable(&services.objects, allowed.fid())?;
                    Ok(Commit::InObjects(pushed))
                }
            }
        })
        .await?
    };
    finish_here(services, commit).await
}

/// Counts a store that this server has applied, and collects the promises that it breaks.
fn changed_here<B>(
    callbacks: &Callbacks,
    session: &Session,
    changed: Changed<VnodeStatus>,
    allowed: PermittedStore,
) -> Commit<B> {
    allowed.count(session);
    let touched = Touched::changed([allowed.fid()]);
    let pending = callbacks.collect(&touched, session.host_slot(), session.now.0);
    Commit::Done(changed, pending, Box::new(allowed))
}

/// Waits until an applied store is durable and all hosts were notified.
async fn finish_here<B>(
    services: &FileServices,
    commit: Commit<B>,
) -> Result<LocalStore<B>, Refusal> {
    match commit {
        Commit::Done(changed, pending, allowed) => {
            let status = finish(&services.callbacks, changed, pending).await?;
            schedule_object_removal(&services.objects, &allowed);
            Ok(LocalStore::Done(status, allowed.access))
        }
        Commit::InObjects(bytes) => Ok(LocalStore::InObjects(bytes)),
    }
}
