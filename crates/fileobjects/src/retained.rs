//! The bytes that a file keeps during a store into new objects.

use std::sync::Arc;

use cellar_objects::{Reader, Writer};
use cellar_rpc::blocking;
use cellar_volume::Volume;
use cellar_wire::ids::Fid;
use cellar_wire::object::Layout;

use super::Objects;
use super::failure::{Failure, WriteFailure};
use super::limits::{COPY_PIECE_BYTES, OBJECT_PATIENCE};

/// The bytes that a file keeps and that must be copied.
pub(super) enum RetainedData {
    Nothing,
    Here(Arc<Volume>, Fid),
    Objects(Arc<Objects>, Fid, Arc<Layout>, u64),
}

impl RetainedData {
    /// Copies a range.
    pub(super) async fn copy(
        &mut self,
        writer: &mut Writer,
        range: std::ops::Range<u64>,
    ) -> Result<(), WriteFailure> {
        if range.is_empty() {
            return Ok(());
        }
        match self {
            Self::Nothing => Ok(()),
            Self::Here(volume, fid) => {
                let (volume, fid) = (volume.clone(), *fid);
                let length = range.end - range.start;
                let mut reader =
                    blocking(move || volume.read_file(fid, range.start, length)).await?;
                let mut left = length;
                while left > 0 {
                    let (back, piece) = blocking(move || {
                        let piece = reader.next(COPY_PIECE_BYTES);
                        (reader, piece)
                    })
                    .await;
                    reader = back;
                    // The file was truncated in the meantime: the store is overtaken.
                    let piece = piece?.ok_or(Failure::Busy)?;
                    left = left.saturating_sub(piece.len() as u64);
                    writer.push(piece).await?;
                }
                Ok(())
            }
            Self::Objects(objects, fid, layout, whole) => {
                let storage = objects.needed()?;
                let _read_guard = objects.open_reads.begin(*fid, layout);
                let set = storage.set(*fid, (**layout).clone());
                let options = cellar_objects::ReadOptions {
                    patience: OBJECT_PATIENCE,
                    ..cellar_objects::ReadOptions::default()
                };
                let reader = Reader::new(storage.devices.clone(), set, range, options);
                let mut reader = reader.map_err(unreadable)?;
                while let Some(piece) = reader.next().await.map_err(unreadable)? {
                    writer.push(piece).await?;
                }
                for problem in reader.problems() {
                    objects.repair_after_read(*fid, layout, *whole, problem);
                }
                Ok(())
            }
        }
    }
}

/// The failure if the present objects of a file cannot be read.
fn unreadable(error: cellar_objects::Error) -> Failure {
    Failure::Devices(error.code())
}
