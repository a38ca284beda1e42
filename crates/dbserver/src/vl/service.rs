//! VL over Rx and the local socket: the dispatch of calls, and the streamed listings.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::BytesMut;
use cellar_auth::Authority;
use cellar_auth::audit::Audit;
use cellar_rpc::{IncomingCall, LocalBoxFuture, Service};
use cellar_wire::package::Package;
use cellar_wire::vl as wire;
use cellar_wire::vl::{
    LinkedList, LinkedListN, ListAttributes, ListAttributesN, VldbListByAttributes,
};
use cellar_wire::{AbortCode, Encode, Procedure};

use super::Vl;
use super::entry::{Entry, Holder};
use super::lock::Locking;
use super::model::Locations;
use crate::answer::Server;
use crate::dispatch::{answer, respond};
use crate::guard::Guard;

/// The number of entries that are converted before the transport gets them.
const CHUNK_ENTRIES: usize = 64;
/// The word before each element of a linked list.
const SOME: u32 = 1;

/// The service that answers VL calls.
#[derive(Clone)]
pub struct VlService {
    vl: Arc<Vl>,
    guard: Guard,
}

impl VlService {
    /// A service that identifies only the local administrator.
    pub fn new(vl: Arc<Vl>) -> Self {
        let guard = Guard::default();
        Self { vl, guard }
    }

    /// The same service for callers with tickets: `authority` names the superusers, `audit` records
    /// their changes.
    #[must_use]
    pub fn with_authority(self, authority: Authority, audit: Audit) -> Self {
        let guard = Guard::new(authority, audit);
        Self { guard, ..self }
    }
}

impl Service for VlService {
    fn package(&self) -> &'static Package {
        &wire::PACKAGE
    }

    fn call<'a>(&'a self, call: &'a mut IncomingCall) -> LocalBoxFuture<'a, Result<(), AbortCode>> {
        Box::pin(dispatch(&self.vl, &self.guard, call))
    }
}

async fn dispatch(vl: &Arc<Vl>, guard: &Guard, call: &mut IncomingCall) -> Result<(), AbortCode> {
    macro_rules! dispatch {
        ($opcode:expr; $($procedure:ident)*) => {
            match $opcode {
                wire::SetLock::OPCODE => locked::<wire::SetLock>(vl, guard, call).await,
                wire::LockNoted::OPCODE => locked::<wire::LockNoted>(vl, guard, call).await,
                $( wire::$procedure::OPCODE =>
                    answer::<wire::$procedure, _>(vl, guard, call).await, )*
                opcode => {
                    let listed = answer_listing(vl, guard, call, opcode).await;
                    listed.unwrap_or(Err(AbortCode::RXGEN_OPCODE))
                }
            }
        };
    }
    dispatch! { call.opcode().await?;
        GetEntryByNameU GetEntryByIDN GetEntryByNameN GetAddrsU GetEntryByID GetEntryByNameO
        CreateEntry CreateEntryN DeleteEntry ReplaceEntry ReplaceEntryN UpdateEntry
        UpdateEntryByName ReleaseLock GetNewVolumeId ListEntry ListEntryN ListAttributesN2
        GetAddrs RegisterAddrs ChangeAddr GetStats ProbeServer GetCapabilities GetLock
    }
}

/// Replies to a call that locks, and records the caller as the holder.
async fn locked<P: Locking>(
    vl: &Arc<Vl>,
    guard: &Guard,
    call: &mut IncomingCall,
) -> Result<(), AbortCode> {
    let from = match call.peer().address {
        SocketAddr::V4(address) if address.port() != 0 => u32::from(*address.ip()),
        // The local administrator's socket has no address.
        _ => 0,
    };
    let known = guard.identify(call.caller());
    let by = Holder {
        who: wire::LockText::try_from(known.who()).unwrap_or_default(),
        from,
        ..Holder::default()
    };
    respond::<P, Vl>(vl, guard, call, true, move |vl, identity, arguments: P| {
        vl.admit_and_count(P::OPCODE, identity, || arguments.lock(vl, identity, by))
    })
    .await
}

/// A form of reply that is streamed.
trait Listing: Procedure {
    /// Whether each entry is the target of an XDR pointer.
    const LINKED: bool;

    fn attributes(&self) -> &VldbListByAttributes;
    fn append(model: &Locations, entry: &Entry, buffer: &mut BytesMut);
}

macro_rules! listing {
    ($procedure:ident, $linked:literal, $convert:ident) => {
        impl Listing for $procedure {
            const LINKED: bool = $linked;

            fn attributes(&self) -> &VldbListByAttributes {
                &self.attributes
            }

            fn append(model: &Locations, entry: &Entry, buffer: &mut BytesMut) {
                model.$convert(entry).encode_to(buffer);
            }
        }
    };
}

listing!(ListAttributes, false, to_old);
listing!(ListAttributesN, false, to_n);
listing!(LinkedList, true, to_old);
listing!(LinkedListN, true, to_n);

/// Replies to one of the older listings by streaming.
async fn stream<P: Listing>(
    vl: &Arc<Vl>,
    guard: &Guard,
    call: &mut IncomingCall,
) -> Result<(), AbortCode> {
    let arguments: P = call.arguments().await?;
    let who = vl.identify(call.caller(), guard);
    let server = Arc::clone(vl);
    let gathered = cellar_rpc::blocking(move || {
        server.admit_and_count(P::OPCODE, who, || server.gather(arguments.attributes()))
    });
    let gathered = gathered.await?;
    call.reply(&(gathered.len() as u32));
    if !P::LINKED {
        call.reply(&(gathered.len() as u32));
    }
    for chunk in gathered.chunks(CHUNK_ENTRIES) {
        let mut buffer = BytesMut::new();
        {
            let model = vl.replica.read();
            for entry in chunk {
                if P::LINKED {
                    SOME.encode_to(&mut buffer);
                }
                P::append(&model, entry, &mut buffer);
            }
        }
        call.write(buffer.freeze()).await?;
    }
    if P::LINKED {
        call.reply(&0u32);
    }
    Ok(())
}

/// Replies to the older listings; `None` for any other call.
async fn answer_listing(
    vl: &Arc<Vl>,
    guard: &Guard,
    call: &mut IncomingCall,
    opcode: u32,
) -> Option<Result<(), AbortCode>> {
    Some(match opcode {
        ListAttributes::OPCODE => stream::<ListAttributes>(vl, guard, call).await,
        ListAttributesN::OPCODE => stream::<ListAttributesN>(vl, guard, call).await,
        LinkedList::OPCODE => stream::<LinkedList>(vl, guard, call).await,
        LinkedListN::OPCODE => stream::<LinkedListN>(vl, guard, call).await,
        _ => return None,
    })
}
