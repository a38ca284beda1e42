//! The calls that a file server makes to a host's callback service (RXAFSCB), and the meaning of
//! the answers. Clients differ in the calls that they serve, so each question falls back to its
//! older form.

use std::time::Duration;

use cellar_rpc::{CallError, CallOptions, Connection};
use cellar_wire::AbortCode;
use cellar_wire::host::client_capability::ERROR_TRANSLATION;
use cellar_wire::ids::{AfsUuid, Fid};
use cellar_wire::{List, rxafscb};

use crate::limits::BREAK_PATIENCE;

/// The answer of a host to the question who it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HostIdentity {
    /// A client with a UUID.
    Client {
        /// The UUID of the client process; constant while it runs.
        uuid: AfsUuid,
        /// Whether the client understands universal errno codes.
        translates_errors: bool,
    },
    /// A client with one address and no UUID.
    NoUuid,
    /// A program that answers but serves no callback calls, for instance an administrator's
    /// command.
    NoService,
}

/// Asks a host who it is.
pub(super) async fn who_are_you(connection: &Connection) -> Result<HostIdentity, CallError> {
    match connection.call(&rxafscb::TellMeAboutYourself {}).await {
        Ok(reply) => {
            let bits = reply.capabilities.first().copied().unwrap_or(0);
            return Ok(who_of(reply.address.uuid, bits & ERROR_TRANSLATION != 0));
        }
        Err(CallError::Aborted(_)) => {}
        Err(cause) => return Err(cause),
    }
    match connection.call(&rxafscb::WhoAreYou {}).await {
        Ok(reply) => return Ok(who_of(reply.address.uuid, false)),
        Err(CallError::Aborted(_)) => {}
        Err(cause) => return Err(cause),
    }
    match connection.call(&rxafscb::Probe {}).await {
        Ok(_) => Ok(HostIdentity::NoUuid),
        Err(CallError::Aborted(_)) => Ok(HostIdentity::NoService),
        Err(cause) => Err(cause),
    }
}

fn who_of(uuid: AfsUuid, translates_errors: bool) -> HostIdentity {
    if uuid.is_nil() {
        HostIdentity::NoUuid
    } else {
        HostIdentity::Client {
            uuid,
            translates_errors,
        }
    }
}

/// Tells a host to forget every promise of this server.
pub(super) async fn forget_everything(
    connection: &Connection,
    server: AfsUuid,
    with_uuid: bool,
) -> Result<(), CallError> {
    if with_uuid {
        match connection
            .call(&rxafscb::InitCallBackState3 {
                server_uuid: server,
            })
            .await
        {
            Ok(_) => return Ok(()),
            Err(CallError::Aborted(AbortCode::RXGEN_OPCODE)) => {}
            Err(cause) => return Err(cause),
        }
    }
    connection
        .call(&rxafscb::InitCallBackState {})
        .await
        .map(|_| ())
}

/// Breaks the promises for these fids, at most 50. The array of callbacks stays empty, as file
/// servers send it.
pub(super) async fn break_callbacks(
    connection: &Connection,
    fids: &[Fid],
) -> Result<(), CallError> {
    let call = rxafscb::CallBack {
        fids: List::from_iter_cut(fids.iter().copied()),
        callbacks: List::new(),
    };
    let options = CallOptions {
        timeout: Some(BREAK_PATIENCE),
    };
    connection.call_with(&call, options).await.map(|_| ())
}

/// Whether the host with this UUID answers there.
pub(super) async fn probe_uuid(connection: &Connection, uuid: AfsUuid, patience: Duration) -> bool {
    let options = CallOptions {
        timeout: Some(patience),
    };
    match connection
        .call_with(&rxafscb::ProbeUuid { client_uuid: uuid }, options)
        .await
    {
        Ok(_) => true,
        // A client too old for `ProbeUuid`. Its answer shows only that a client is there.
        Err(CallError::Aborted(AbortCode::RXGEN_OPCODE)) => true,
        Err(_) => false,
    }
}

/// Whether any host answers there.
pub(super) async fn probe(connection: &Connection, patience: Duration) -> bool {
    let options = CallOptions {
        timeout: Some(patience),
    };
    connection
        .call_with(&rxafscb::Probe {}, options)
        .await
        .is_ok()
}
