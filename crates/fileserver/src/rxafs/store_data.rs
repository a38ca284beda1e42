//! StoreData (133) and StoreData64 (65538): writes bytes into a file.
//!
//! 1. Rights are checked before the server waits for bytes, so that a client without rights is
//!    refused at once.
//! 2. Up to [`SMALL_STORE`] bytes are gathered and applied in one step, on this thread if nothing
//!    blocks. Longer stores go to the volume in pieces of [`crate::limits::STORE_PIECE_BYTES`], on
//!    threads that may wait for the disk. So memory is bounded by one piece for each call.
//! 3. The file does not change before all bytes have arrived. If a client stops, or the partition
//!    becomes full, the file is unchanged.
//! 4. A file that is in objects, or goes there, is stored there ([`in_objects`]). If it changes
//!    its place meanwhile, the store begins again in the other place with the same bytes
//!    ([`in_either_place`], [`source`]).
//! 5. Applying the store and collecting the promises that it breaks are one step
//!    ([`Callbacks::collect`](crate::callbacks::Callbacks::collect)).

use std::sync::Arc;

use bytes::Bytes;
use cellar_fileobjects::Failure;
use cellar_rpc::IncomingCall;
use cellar_volume::VnodeStatus;
use cellar_wire::AbortCode;
use cellar_wire::ids::{AfsTime, Fid};
use cellar_wire::rxafs::{
    AfsFetchStatus, AfsStoreStatus, StoreData, StoreData64, StoreData64Reply, StoreDataReply,
    VolSync,
};
use cellar_wire::serve::HandleStream;
use tokio::time::Instant;

use self::in_objects::{ObjectStore, into_objects};
use self::local::{LocalStore, from_source, gathered, large, small};
use self::source::StoreBytes;
use super::FileService;
use crate::abort_map::Refusal;
use crate::access::Access;
use crate::limits::STORE_ATTEMPTS;
use crate::load;
use crate::recall::with_recall;
use crate::services::FileServices;
use crate::session::Session;
use crate::statistics::Direction;
use crate::status::vol_sync;

mod in_objects;
mod local;
mod permitted;
mod source;

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
        let services = &self.services;
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
        let (status, sync) = store(services, call, asked).await?;
        Ok(StoreDataReply { status, sync })
    }
}

impl HandleStream<StoreData64, IncomingCall> for FileService {
    async fn handle_stream(
        &self,
        call: &mut IncomingCall,
        arguments: StoreData64,
    ) -> Result<StoreData64Reply, Refusal> {
        let services = &self.services;
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
        let (status, sync) = store(services, call, asked).await?;
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
    services: &Arc<FileServices>,
    call: &mut IncomingCall,
    asked: StoreRequest,
) -> Result<(AfsFetchStatus, VolSync), Refusal> {
    let session = services.sessions.session(call).await?;
    let recalled = async || permitted::check_online(services, &session, &asked).await;
    with_recall(services, &session, asked.fid, recalled).await?;
    let begun = Instant::now();
    let mut left = asked.length;
    let outcome = if asked.length <= SMALL_STORE {
        small(services, call, &session, asked, &mut left).await
    } else {
        Box::pin(large(services, call, &session, asked, &mut left)).await
    };
    trace(&asked, left, &outcome, begun);
    let whole = outcome.is_ok();
    load::note_bytes(asked.length - left);
    services
        .statistics
        .transfer(Direction::Store, asked.length, whole, begun.elapsed());
    let (status, access) = outcome?;
    let sync = {
        let attached = services.volumes.changed(asked.fid)?;
        vol_sync(&attached.volume)
    };
    Ok((services.callbacks.show(&session, &status, access), sync))
}

/// Stores bytes into a file that was in objects, or on the way there, a moment ago. Another store
/// may change its place or its contents meanwhile. Then this one begins again.
///
/// # Errors
/// [`Refusal::Busy`]: the bytes are needed again and are gone, or other stores came in between
/// [`STORE_ATTEMPTS`] times.
async fn in_either_place(
    services: &Arc<FileServices>,
    session: &Session,
    asked: StoreRequest,
    mut bytes: StoreBytes<'_>,
) -> Result<(VnodeStatus, Access), Refusal> {
    for _ in 0..STORE_ATTEMPTS {
        match into_objects(services, session, asked, &mut bytes).await? {
            ObjectStore::Done(status, access) => return Ok((status, access)),
            ObjectStore::Overtaken => continue,
            ObjectStore::Here => {}
        }
        match from_source(services, session, asked, &mut bytes).await? {
            LocalStore::Done(status, access) => return Ok((status, access)),
            LocalStore::InObjects(Some(pushed)) => bytes = StoreBytes::Pushed(Some(pushed)),
            LocalStore::InObjects(None) => {}
        }
    }
    Err(Refusal::Busy)
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

/// Stores all bytes of a file that the caller has just created. The file then has the time `time`,
/// or now.
pub(super) async fn store_gathered(
    services: &Arc<FileServices>,
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
    let (status, _) = gathered(services, session, asked, data).await?;
    Ok(status)
}

/// Gathers at least `wanted` of the bytes that a client announced, of which `left` are still to
/// come.
pub(super) async fn gather(
    call: &mut IncomingCall,
    left: &mut u64,
    wanted: u64,
) -> Result<Vec<Bytes>, Refusal> {
    Ok(gather_bytes(call, left, wanted).await?)
}

async fn gather_bytes(
    call: &mut IncomingCall,
    left: &mut u64,
    wanted: u64,
) -> Result<Vec<Bytes>, Failure> {
    call.gather(left, wanted).await.map_err(|code| match code {
        AbortCode::RX_CALL_DEAD => Failure::SourceEnded,
        code => Failure::Call(code),
    })
}
