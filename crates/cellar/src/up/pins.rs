//! The pins of the cell, for a file server. The OSD database has them.

use cellar_fileserver::protection::BoxFuture;
use cellar_fileserver::{PinAnswer, PinTable};
use cellar_rpc::CallError;
use cellar_wire::ids::{Fid, ViceId};
use cellar_wire::osddb::{DeletePin, ListPins, Pin, SetPin};

use super::remote_databases::RemoteDatabases;

impl PinTable for RemoteDatabases {
    fn pins(&self, known: u64) -> BoxFuture<'_, PinAnswer> {
        Box::pin(async move {
            let listed = self.ask_location_servers(&ListPins { known }).await?;
            Ok((listed.revision, listed.pins.into_vec()))
        })
    }

    fn set(&self, pin: Pin) -> BoxFuture<'_, Result<(), CallError>> {
        Box::pin(async move { self.ask_location_servers(&SetPin { pin }).await.map(drop) })
    }

    fn delete(&self, fid: Fid, owner: ViceId) -> BoxFuture<'_, Result<(), CallError>> {
        Box::pin(async move {
            self.ask_location_servers(&DeletePin { fid, owner })
                .await
                .map(drop)
        })
    }
}
