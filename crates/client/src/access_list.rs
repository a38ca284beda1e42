//! Stores an access list, with the opcode that the file server knows.

use std::fmt;

use cellar_wire::abort::AbortCode;
use cellar_wire::ids::Fid;
use cellar_wire::rxafs::{AfsOpaque, OldStoreACL, StoreACL};

use crate::client::Client;
use crate::error::Result;
use crate::volume::Volume;

impl Client {
    /// Replaces the access list of a directory. The text has the form that
    /// [`cellar_wire::rxafs::FetchACL`] returns.
    ///
    /// # Errors
    /// The server refuses the call. The error names `what` was attempted.
    pub async fn store_access_list(
        &self,
        volume: &Volume,
        fid: Fid,
        access_list: AfsOpaque,
        what: &(dyn fmt::Display + Sync),
    ) -> Result<()> {
        let asked = StoreACL {
            fid,
            access_list: access_list.clone(),
        };
        match self.call_volume(volume, what, &asked).await {
            // OpenAFS 1.8 knows only the older opcode.
            Err(error) if error.code() == Some(AbortCode::RXGEN_OPCODE) => {
                let asked = OldStoreACL { fid, access_list };
                self.call_volume(volume, what, &asked).await.map(drop)
            }
            other => other.map(drop),
        }
    }
}
