//! Compares the bytes of two files: after a copy (`--verify`), and before an interrupted copy
//! continues (`--resume`).
//!
//! Both files are read in pieces of [`PIECE_BYTES`], and the checksums of the pieces are compared.
//! AFS files are read from the servers: this client keeps no cache.

use bytes::Bytes;
use cellar_client::{Client, Source as _};

use super::origin::Origin;
use super::source::Source;
use crate::failure::{Failure, Outcome};

/// Bytes of one piece.
const PIECE_BYTES: u64 = 1 << 20;

/// The position of the first piece within `begin..end` in which two files differ; `None` if they
/// are equal.
pub(super) async fn difference(
    client: &Client,
    one: &Origin,
    other: &Origin,
    begin: u64,
    end: u64,
    progress: impl Fn(u64),
) -> Outcome<Option<u64>> {
    let mut position = begin;
    let mut sources = (
        one.open(client, begin..end).await?,
        other.open(client, begin..end).await?,
    );
    while position < end {
        let length = (end - position).min(PIECE_BYTES);
        let (one, other) = tokio::join!(
            sum(&mut sources.0, length, one),
            sum(&mut sources.1, length, other)
        );
        if one? != other? {
            return Ok(Some(position));
        }
        position += length;
        progress(length);
    }
    Ok(None)
}

/// Length and checksum of the next `length` bytes.
async fn sum(source: &mut Source<'_>, length: u64, of: &Origin) -> Outcome<(usize, u32)> {
    let failed = |cause| Failure::new(format!("{}: {cause}", of.path()));
    let chunks: Vec<Bytes> = source.take(length).await.map_err(failed)?;
    let add =
        |(count, sum), chunk: &Bytes| (count + chunk.len(), crc32c::crc32c_append(sum, chunk));
    Ok(chunks.iter().fold((0, 0), add))
}

/// The position at which an interrupted copy can continue: the length of the partial copy, if its
/// last bytes match the origin, otherwise 0.
pub(super) async fn resume_position(
    client: &Client,
    from: &Origin,
    there: &Origin,
) -> Outcome<u64> {
    let length = there.length();
    if length == 0 || length > from.length() {
        return Ok(0);
    }
    let begin = length.saturating_sub(PIECE_BYTES);
    let differs = difference(client, from, there, begin, length, |_| {}).await?;
    Ok(if differs.is_some() { 0 } else { length })
}
