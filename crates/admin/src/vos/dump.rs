//! Dumping a volume into a stream.
//!
//! With `-clone`, the volume is cloned and the clone dumped, so that writers of the volume wait
//! only for the clone. The clone is removed at the end of the dump, also after a failure.

use bytes::Bytes;
use cellar_rpc::OutgoingCall;
use cellar_wire::ids::{AfsTime, VolumeId};
use cellar_wire::{AbortCode, afsvol};

use super::job::JobContext;
use super::transaction::Trans;
use super::{Location, Volumes};
use crate::error::{Error, Result};

/// The name of the temporary clone.
const TEMPORARY: &str = "dump-clone-temp";

/// Options of [`Volumes::dump`].
#[derive(Clone, Copy, Debug, Default)]
pub struct DumpOptions {
    /// Only the changes since then; 0 is everything.
    pub since: AfsTime,
    /// Clone the volume and dump the clone.
    pub clone: bool,
    /// Directories without changes are left out.
    pub omit_directories: bool,
    /// For files in objects, the dump has the location of the bytes instead of the bytes. Only
    /// Cellar's servers do that. Such a dump can be restored only in a cell that has these objects.
    pub metadata_only: bool,
}

impl DumpOptions {
    fn flags(&self) -> i32 {
        let flag = |set: bool, flag: i32| if set { flag } else { 0 };
        flag(self.omit_directories, afsvol::DUMP_OMIT_DIRS)
            | flag(self.metadata_only, afsvol::DUMP_OSD_METADATA)
    }
}

impl Volumes<'_> {
    /// Dumps a volume: `sink` gets the stream piece by piece and may fail.
    ///
    /// # Errors
    /// There is no such volume there, it is busy, the caller has no permission, or the sink failed.
    pub async fn dump(
        &self,
        at: Location,
        volume: VolumeId,
        options: DumpOptions,
        context: JobContext<'_>,
        sink: impl AsyncFnMut(Bytes) -> std::io::Result<()>,
    ) -> Result<()> {
        if !options.clone {
            let trans = self.begin(at, volume, afsvol::IT_BUSY).await?;
            let dumped = self.read_dump(&trans, options, context, sink).await;
            return trans.finish(dumped).await;
        }
        let clone = self.new_volume_ids(1).await?;
        let trans = self.begin(at, volume, afsvol::IT_BUSY).await?;
        let cloned = trans.clone_to(afsvol::READONLY, TEMPORARY, clone).await;
        trans.finish(cloned).await?;
        let dumped = async {
            let trans = self.begin(at, clone, afsvol::IT_OFFLINE).await?;
            let dumped = self.read_dump(&trans, options, context, sink).await;
            trans.finish(dumped).await
        }
        .await;
        let deleted = self.delete_from(at, clone).await;
        dumped.and(deleted.map(|_| ()))
    }

    async fn read_dump(
        &self,
        trans: &Trans<'_>,
        options: DumpOptions,
        context: JobContext<'_>,
        mut sink: impl AsyncFnMut(Bytes) -> std::io::Result<()>,
    ) -> Result<()> {
        let what = format!("Failed to dump volume {}", trans.volume);
        let refused = |cause| Error::refused(what.clone(), cause);
        let connection = self.connection(trans.at.server.into());
        let flags = options.flags();
        let mut call: OutgoingCall = if flags != 0 {
            connection
                .open(&afsvol::DumpV2 {
                    trans: trans.number,
                    from_date: options.since.0 as i32,
                    flags,
                })
                .await
        } else {
            connection
                .open(&afsvol::Dump {
                    trans: trans.number,
                    from_date: options.since.0 as i32,
                })
                .await
        }
        .map_err(refused)?;
        call.finish();
        let mut begun = false;
        loop {
            let chunk = context
                .or_stop(async { call.read_chunk().await.map_err(refused) })
                .await;
            match chunk {
                Ok(Some(bytes)) => {
                    begun = true;
                    sink(bytes).await.map_err(Error::Local)?;
                }
                Ok(None) => return Ok(()),
                // A server without DumpV2 dumps unchanged directories too; they do no harm.
                Err(error)
                    if !begun
                        && options.omit_directories
                        && !options.metadata_only
                        && error.code() == Some(AbortCode::RXGEN_OPCODE) =>
                {
                    let plain = DumpOptions {
                        omit_directories: false,
                        ..options
                    };
                    return Box::pin(self.read_dump(trans, plain, context, sink)).await;
                }
                Err(error) => return Err(error),
            }
        }
    }
}
