//! `cellar db export` of a running server.

use cellar_wire::{AbortCode, bozo};

use super::Overseer;
use crate::error::{Error, Form, Result};

impl Overseer<'_> {
    /// Hands the text of the server's databases to `sink`, piece by piece. The caller needs the
    /// rights of a superuser.
    ///
    /// # Errors
    /// BZACCESS: the caller is no superuser. BZNOENT: the server has no databases in a file.
    /// RXGEN_OPCODE: the server is not Cellar's, or older. [`Error::Local`]: the sink failed.
    pub async fn export_databases(
        &self,
        sink: &mut dyn FnMut(&[u8]) -> std::io::Result<()>,
    ) -> Result<()> {
        let refused = |cause| {
            let error = self.failed(" (while exporting databases)", cause, Form::Before);
            let nothing = "this server has no databases in a file; name a database server";
            let older = "this server cannot export its databases while it runs: stop or upgrade it";
            error
                .advise(AbortCode::BZNOENT, nothing)
                .advise(AbortCode::RXGEN_OPCODE, older)
        };
        let opened = self.connection().open(&bozo::ExportDatabases {}).await;
        let mut call = opened.map_err(refused)?;
        while let Some(piece) = call.read_chunk().await.map_err(refused)? {
            sink(&piece).map_err(Error::Local)?;
        }
        Ok(())
    }
}
