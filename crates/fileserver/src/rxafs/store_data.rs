//! StoreData (133) and StoreData64 (65538): writes bytes into a file.
//!
//! 1. Rights are checked before the server waits for bytes, so that a client without rights is
//!    refused at once.
//! 2. Up to [`SMALL_STORE`] bytes are gathered and applied in one step, on this thread if nothing
//!    blocks. Longer stores go to the volume in pieces of [`STORE_PIECE_BYTES`], on threads that
//!    may wait for the disk. So memory is bounded by one piece for each call.
//! 3. The file does not change before all bytes have arrived. If a client stops, or the partition
//!    becomes full, the file is unchanged.
//! 4. A file that is in objects, or goes there, is stored there ([`crate::objects::store`]).
//! 5. Applying the store and collecting the promises that it breaks are one step
//!    ([`super::common::collect`]).

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use bytes::Bytes;
use cellar_rpc::{IncomingCall, blocking};
use cellar_volume::{Changed, Error, FileType, SetStatus, Store, StoreSpec, VnodeStatus};
use cellar_wire::AbortCode;
use cellar_wire::ids::{AfsTime, Fid};
use cellar_wire::object::Layout;
use cellar_wire::rxafs::{
    AfsFetchStatus, AfsStoreStatus, StoreData, StoreData64, StoreData64Reply, StoreDataReply,
    VolSync,
};
use cellar_wire::serve::HandleStream;
use tokio::time::Instant;

use super::FileService;
use super::common::{Touched, change, collect, finish, run, status_and_access};
use super::store_status::allowed_attributes;
use crate::abort_map::Refusal;
use crate::access::Access;
use crate::callback::Pending;
use crate::limits::{OBJECT_BEGIN_BYTES, STORE_PIECE_BYTES, STORE_SLACK_BLOCKS};
use crate::objects::loaded_lists::retry_when_loaded;
use crate::objects::policies::StorageDecision;
use crate::objects::store::{self, Replayed, Source, Storing};
use crate::server::Server;
use crate::session::Session;
use crate::statistics::Direction;
use crate::status::vol_sync;
use crate::volumes::{Attached, VolumeAccess};

/// Stores up to this length are applied in one step. The volume never writes them to blocks of
/// their own while a client waits.
const SMALL_STORE: u64 = 64 * 1024;

/// The largest value in the 32-bit form.
const LARGEST_32: u64 = 0x7fff_ffff;

impl HandleStream<StoreData, IncomingCall> for FileService {
    async fn handle_stream(
        &self,
        call: &mut IncomingCall,
        arguments: StoreData,
    ) -> Result<StoreDataReply, Refusal> {
        let server = &self.server;
        let StoreData {
            fid,
            in_status,
            position,
            length,
            file_length,
        } = arguments;
        let asked = StoreRequest {
            fid,
            in_status,
            position: position.into(),
            length: length.into(),
            file_length: file_length.into(),
        };
        if asked.end()? > LARGEST_32 || asked.file_length > LARGEST_32 {
            return Err(Refusal::TooBig);
        }
        let (status, sync) = store(server, call, asked).await?;
        Ok(StoreDataReply { status, sync })
    }
}

impl HandleStream<StoreData64, IncomingCall> for FileService {
    async fn handle_stream(
        &self,
        call: &mut IncomingCall,
        arguments: StoreData64,
    ) -> Result<StoreData64Reply, Refusal> {
        let server = &self.server;
        let StoreData64 {
            fid,
            in_status,
            position,
            length,
            file_length,
        } = arguments;
        let asked = StoreRequest {
            fid,
            in_status,
            position,
            length,
            file_length,
        };
        asked.end()?;
        let (status, sync) = store(server, call, asked).await?;
        Ok(StoreData64Reply { status, sync })
    }
}

#[derive(Clone, Copy)]
struct StoreRequest {
    fid: Fid,
    in_status: AfsStoreStatus,
    position: u64,
    length: u64,
    file_length: u64,
}

impl StoreRequest {
    fn end(&self) -> Result<u64, Refusal> {
        let end = self
            .position
            .checked_add(self.length)
            .ok_or(Refusal::TooBig)?;
        let largest = i64::MAX as u64;
        if end > largest || self.file_length > largest {
            Err(Refusal::TooBig)
        } else {
            Ok(end)
        }
    }
}

async fn store(
    server: &Arc<Server>,
    call: &mut IncomingCall,
    asked: StoreRequest,
) -> Result<(AfsFetchStatus, VolSync), Refusal> {
    let session = server.session(call).await?;
    let begun = Instant::now();
    let mut left = asked.length;
    let outcome = if asked.length <= SMALL_STORE {
        small(server, call, &session, asked, &mut left).await
    } else {
        Box::pin(large(server, call, &session, asked, &mut left)).await
    };
    trace(&asked, left, &outcome, begun);
    let whole = outcome.is_ok();
    server
        .statistics
        .transfer(Direction::Store, asked.length, whole, begun.elapsed());
    let (status, access) = outcome?;
    let sync = {
        let attached = server.volume_changed(asked.fid)?;
        vol_sync(&attached.volume)
    };
    Ok((server.show(&session, &status, access), sync))
}

/// Logs one line for each store, to help the search for bytes that were not stored.
fn trace(
    asked: &StoreRequest,
    missing: u64,
    outcome: &Result<(VnodeStatus, Access), Refusal>,
    begun: Instant,
) {
    let StoreRequest {
        fid,
        position,
        length,
        file_length,
        ..
    } = *asked;
    match outcome {
        Ok((status, _)) => {
            let (now, version) = (status.length, status.data_version);
            let took = begun.elapsed();
            tracing::trace!(%fid, position, length, file_length, now, version, ?took, "stored");
        }
        Err(refusal) => {
            let took = begun.elapsed();
            tracing::debug!(%fid, position, length, file_length, missing, ?refusal, ?took, "store refused");
        }
    }
}

/// A store that is allowed.
struct PermittedStore {
    attached: Attached,
    /// The file before the store.
    before: VnodeStatus,
    /// The objects of the file before the store. If the file is on this server after the store, its
    /// objects are removed.
    objects: Option<Arc<Layout>>,
    spec: StoreSpec,
    access: Access,
}

impl PermittedStore {
    /// The place of the file after the store.
    fn place(
        &self,
        server: &Server,
        session: &Session,
        asked: &StoreRequest,
    ) -> Result<StorageDecision, Refusal> {
        let kept = self.before.length.min(asked.file_length);
        let length = kept.max(asked.position + asked.length);
        let volume = &self.attached.volume;
        store::place(
            server,
            volume,
            &self.before,
            session.identity(),
            length,
            kept,
        )
    }

    fn count(&self, session: &Session) {
        let volume = &self.attached.volume;
        volume.count_change(session.origin(), &self.before, session.context());
    }
}

/// Whether the caller may store, and with which attributes.
fn check(
    server: &Server,
    session: &Session,
    asked: &StoreRequest,
) -> Result<PermittedStore, Refusal> {
    let attached = server.volume_of(asked.fid, VolumeAccess::Change)?;
    let (status, _, access) = status_and_access(server, session, &attached, asked.fid)?;
    if status.kind != FileType::File {
        return Err(Refusal::Store(Error::IsDirectory));
    }
    let identity = session.identity();
    if !identity.may_store_data(&status, access.caller) {
        return Err(Refusal::NoRight);
    }
    let mut attributes: SetStatus =
        allowed_attributes(identity, &status, access.caller, &asked.in_status)?;
    // If the client sends no time, the store happens now.
    attributes.client_time.get_or_insert(session.now);
    let spec = StoreSpec {
        position: asked.position,
        file_length: asked.file_length,
        attributes,
        clear_set_id: !identity.administrator,
        quota_slack: STORE_SLACK_BLOCKS.into(),
    };
    let objects = attached.volume.layout(asked.fid)?;
    Ok(PermittedStore {
        attached,
        before: status,
        objects,
        spec,
        access,
    })
}

async fn small(
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

/// Stores all bytes of a file that the caller has just created. The file then has the time `time`,
/// or now.
pub(super) async fn store_gathered(
    server: &Arc<Server>,
    session: &Session,
    fid: Fid,
    time: Option<AfsTime>,
    data: Arc<[Bytes]>,
) -> Result<VnodeStatus, Refusal> {
    let length = data.iter().map(|bytes| bytes.len() as u64).sum();
    let asked = StoreRequest {
        fid,
        in_status: AfsStoreStatus {
            client_mod_time: time,
            ..AfsStoreStatus::default()
        },
        position: 0,
        length,
        file_length: length,
    };
    let (status, _) = gathered(server, session, asked, data).await?;
    Ok(status)
}

/// A store whose bytes are all present.
async fn gathered(
    server: &Arc<Server>,
    session: &Session,
    asked: StoreRequest,
    data: Arc<[Bytes]>,
) -> Result<(VnodeStatus, Access), Refusal> {
    let store = async || {
        let (server, session, data) = (server.clone(), session.clone(), data.clone());
        let work = {
            let (server, session) = (server.clone(), session.clone());
            move || {
                // Checked again: rights may have changed while the bytes arrived.
                let allowed = check(&server, &session, &asked)?;
                if let StorageDecision::Objects(_) = allowed.place(&server, &session, &asked)? {
                    return Err(Refusal::Store(Error::InObjects(asked.fid)));
                }
                let Changed { outcome, durable } = allowed.attached.volume.store(
                    asked.fid,
                    &allowed.spec,
                    &data,
                    session.context(),
                )?;
                allowed.count(&session);
                let changed = Changed {
                    outcome: (outcome, allowed),
                    durable,
                };
                Ok((changed, Touched::changed([asked.fid])))
            }
        };
        change(&server, &session, work).await
    };
    match retry_when_loaded(&server.objects.loaded_lists, store).await {
        Err(Refusal::Store(Error::InObjects(_))) if server.objects.storage().is_some() => {}
        outcome => {
            let (status, allowed) = outcome?;
            schedule_object_removal(server, asked.fid, &allowed);
            return Ok((status, allowed.access));
        }
    }
    let allowed = {
        let (server, session) = (server.clone(), session.clone());
        run(&server.clone(), move || check(&server, &session, &asked)).await?
    };
    let mut bytes = Gathered(data.iter().cloned().collect());
    Box::pin(into_objects(server, session, asked, allowed, &mut bytes)).await
}

/// Schedules the removal of a file's objects, after a store has put its bytes on this server.
fn schedule_object_removal(server: &Server, fid: Fid, allowed: &PermittedStore) {
    if let Some(objects) = &allowed.objects {
        let volume = &allowed.attached.volume;
        server.objects.prunes.queue(volume, fid, objects.clone());
    }
}

/// A store into a file that is in objects, or goes there.
async fn into_objects(
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
struct Gathered(VecDeque<Bytes>);

impl Source for Gathered {
    async fn next(&mut self) -> Result<Option<Bytes>, Refusal> {
        Ok(self.0.pop_front())
    }
}

/// Bytes as the client sends them, after the ones that were gathered before.
struct Arriving<'a> {
    call: &'a mut IncomingCall,
    left: &'a mut u64,
    gathered: VecDeque<Bytes>,
}

impl Source for Arriving<'_> {
    async fn next(&mut self) -> Result<Option<Bytes>, Refusal> {
        if self.gathered.is_empty() {
            self.gathered = gather(self.call, self.left, 1).await?.into();
        }
        Ok(self.gathered.pop_front())
    }
}

async fn large(
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
        let mut bytes = Arriving {
            call,
            left,
            gathered: begun.into(),
        };
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

fn push(mut store: Store, pieces: Vec<Bytes>) -> Result<Store, Refusal> {
    for piece in pieces {
        store.push(piece)?;
    }
    Ok(store)
}

/// The last pieces, the change, and the collection of the promises that it breaks, in one step.
async fn commit(
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

/// Gathers at least `wanted` of the bytes that a client announced, of which `left` are still to
/// come.
pub(super) async fn gather(
    call: &mut IncomingCall,
    left: &mut u64,
    wanted: u64,
) -> Result<Vec<Bytes>, Refusal> {
    call.gather(left, wanted).await.map_err(|code| match code {
        AbortCode::RX_CALL_DEAD => Refusal::StoppedSending,
        code => Refusal::Call(code),
    })
}
