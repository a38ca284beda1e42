//! The pins of the cell, for a file server. The OSD database has them.

use cellar_client::Error;
use cellar_fileserver::protection::BoxFuture;
use cellar_fileserver::{PinAnswer, PinTable};
use cellar_rpc::CallError;
use cellar_wire::ids::{Fid, ViceId};
use cellar_wire::osddb::{DeletePin, ListPins, Pin, SetPin};
use cellar_wire::package::Procedure;

use super::remote_databases::RemoteDatabases;

impl RemoteDatabases {
    async fn ask_osddb<P: Procedure>(&self, asked: &P) -> Result<P::Reply, CallError> {
        let answer = self.client().locations().call(self.cell(), asked).await;
        answer.map_err(|error| match error {
            Error::Database { cause, .. } | Error::DatabaseUnreachable { cause, .. } => cause,
            _ => CallError::Dead,
        })
    }
}

impl PinTable for RemoteDatabases {
    fn pins(&self, known: u64) -> BoxFuture<'_, PinAnswer> {
        Box::pin(async move {
            let listed = self.ask_osddb(&ListPins { known }).await?;
            Ok((listed.revision, listed.pins.into_vec()))
        })
    }

    fn set(&self, pin: Pin) -> BoxFuture<'_, Result<(), CallError>> {
        Box::pin(async move { self.ask_osddb(&SetPin { pin }).await.map(drop) })
    }

    fn delete(&self, fid: Fid, owner: ViceId) -> BoxFuture<'_, Result<(), CallError>> {
        Box::pin(async move { self.ask_osddb(&DeletePin { fid, owner }).await.map(drop) })
    }
}
