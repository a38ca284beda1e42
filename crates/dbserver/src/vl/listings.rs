//! The older listings of VL, whose results are streamed.

use std::sync::Arc;

use bytes::BytesMut;
use cellar_rpc::IncomingCall;
use cellar_wire::serve::HandleListing;
use cellar_wire::vl::{
    LinkedList, LinkedListN, ListAttributes, ListAttributesN, VldbListByAttributes,
};
use cellar_wire::{AbortCode, Encode, Procedure};

use super::Vl;
use super::entry::Entry;
use super::model::Locations;
use crate::answer::{Kind, Server};
use crate::service::DbService;

/// The number of entries that are converted before the transport gets them.
const CHUNK_ENTRIES: usize = 64;
/// The word before each element of a linked list.
const SOME: u32 = 1;

/// A form of reply that is streamed.
trait Listing: Procedure {
    /// Whether each entry is the target of an XDR pointer.
    const LINKED: bool;

    fn attributes(&self) -> &VldbListByAttributes;
    fn append(model: &Locations, entry: &Entry, buffer: &mut BytesMut);
}

macro_rules! listing {
    ($procedure:ident, $linked:literal, $convert:ident) => {
        impl HandleListing<$procedure, IncomingCall> for DbService<Vl> {
            async fn handle_listing(
                &self,
                call: &mut IncomingCall,
                arguments: $procedure,
            ) -> Result<(), AbortCode> {
                stream(self, call, arguments).await
            }
        }

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

/// Replies to one of the listings by streaming.
async fn stream<P: Listing>(
    service: &DbService<Vl>,
    call: &mut IncomingCall,
    arguments: P,
) -> Result<(), AbortCode> {
    let vl = &service.server;
    let who = vl.identify(call.caller(), &service.guard);
    let server = Arc::clone(vl);
    let gathered = cellar_rpc::blocking(move || {
        server.admit_and_count((P::OPCODE, Kind::Listing), who, || {
            server.gather(arguments.attributes())
        })
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
