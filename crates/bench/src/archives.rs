//! `cellar bench archives`: files written to a directory or a bucket of S3 and read back by the
//! library of archives (`object_store`) alone, without Cellar's servers, networks and checksums.
//!
//! 1. It is the measure of copies and recalls by Cellar: the same sizes, parts and syncs, as many
//!    files at a time.
//! 2. Data comes from memory, is repeated for each part, and is compared when it is read.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use cellar_archive::{CredentialSource, S3Location};
use futures_util::stream::{self, StreamExt};
use futures_util::{TryFutureExt, TryStreamExt};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use rand::RngCore;
use serde_json::json;

/// Bytes of a part, as the driver of archives writes them.
const PART_BYTES: usize = 8 << 20;

/// Options of `cellar bench archives`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Example:
  cellar bench archives --path /mnt/tape --files 8 --mebibytes 64

The files are removed at the end. The system's cache is kept between writing and reading.")]
pub struct Options {
    /// Directory; it is made if it is missing.
    #[arg(long, required_unless_present = "s3")]
    pub path: Option<PathBuf>,
    /// URL of a server of S3 instead, for instance `http://127.0.0.1:7070`, in the region us-east-1.
    #[arg(
        long,
        value_name = "URL",
        requires = "bucket",
        requires = "credentials"
    )]
    pub s3: Option<String>,
    /// Bucket of S3.
    #[arg(long)]
    pub bucket: Option<String>,
    /// File with the access key, in the form of `~/.aws/credentials`.
    #[arg(long, value_name = "FILE")]
    pub credentials: Option<PathBuf>,
    /// Number of files.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    pub files: u16,
    /// Size of each file, MiB.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=1_048_576))]
    pub mebibytes: u64,
    /// Files that are written or read at the same time.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub lanes: u16,
}

/// Reason why the measurement failed.
#[derive(Debug, thiserror::Error)]
pub enum ArchivesError {
    /// The directory.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// The library.
    #[error("{0}")]
    Library(#[from] object_store::Error),
    /// The place in S3.
    #[error("{0}")]
    S3(#[from] cellar_archive::Error),
    /// Bytes read differ from bytes written.
    #[error("file {0} was read with other bytes or another length")]
    Differs(u16),
}

/// Runs the measurement, and prints one line of JSON: the rates of writing and reading in MiB/s.
///
/// # Errors
/// [`ArchivesError`].
pub fn run(options: &Options) -> Result<(), ArchivesError> {
    let store = library(options)?;
    let mut part = vec![0; PART_BYTES];
    rand::rng().fill_bytes(&mut part);
    let part = Bytes::from(part);
    let runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = { runtime }.enable_all().build()?;
    runtime.block_on(async {
        let lanes = usize::from(options.lanes);
        let begun = Instant::now();
        let writes = stream::iter(0..options.files);
        let writes = writes.map(|file| write(&store, file, options.mebibytes << 20, &part));
        writes.buffer_unordered(lanes).try_collect::<()>().await?;
        let written = begun.elapsed();
        let begun = Instant::now();
        let reads = stream::iter(0..options.files);
        let reads = reads.map(|file| read(&store, file, options.mebibytes << 20, &part));
        reads.buffer_unordered(lanes).try_collect::<()>().await?;
        let read = begun.elapsed();
        let removals = stream::iter(0..options.files).map(|file| {
            let store = store.clone();
            async move { store.delete(&name(file)).err_into().await }
        });
        let removed = removals.buffer_unordered(lanes);
        removed
            .try_collect::<()>()
            .await
            .map_err(|error: ArchivesError| error)?;
        let bytes = u64::from(options.files) * options.mebibytes;
        let rate = |time: Duration| bytes as f64 / time.as_secs_f64().max(1e-9);
        println!("{}", json!({ "put": rate(written), "get": rate(read) }));
        Ok(())
    })
}

fn library(options: &Options) -> Result<Arc<dyn ObjectStore>, ArchivesError> {
    if let (Some(endpoint), Some(bucket), Some(credentials)) =
        (&options.s3, &options.bucket, &options.credentials)
    {
        let at = S3Location {
            endpoint: endpoint.clone(),
            bucket: bucket.clone(),
            prefix: String::new(),
            region: "us-east-1".to_owned(),
            credentials: CredentialSource::File(credentials.clone()),
            path_style: true,
        };
        return Ok(Arc::new(at.library()?));
    }
    let path = options.path.clone().unwrap_or_default();
    std::fs::create_dir_all(&path)?;
    let store = LocalFileSystem::new_with_prefix(&path)?.with_fsync(true);
    Ok(Arc::new(store))
}

fn name(file: u16) -> Path {
    Path::from(format!("bench/{file}"))
}

async fn write(
    store: &Arc<dyn ObjectStore>,
    file: u16,
    length: u64,
    part: &Bytes,
) -> Result<(), ArchivesError> {
    let mut upload = store.put_multipart(&name(file)).await?;
    let mut left = length;
    while left > 0 {
        let piece = usize::try_from(left).unwrap_or(usize::MAX).min(part.len());
        upload.put_part(part.slice(..piece).into()).await?;
        left -= piece as u64;
    }
    upload.complete().await?;
    Ok(())
}

async fn read(
    store: &Arc<dyn ObjectStore>,
    file: u16,
    length: u64,
    part: &Bytes,
) -> Result<(), ArchivesError> {
    let mut bytes = store.get(&name(file)).await?.into_stream();
    let mut position = 0;
    while let Some(piece) = bytes.try_next().await? {
        let mut rest = &piece[..];
        while !rest.is_empty() {
            let at = position % part.len();
            let count = rest.len().min(part.len() - at);
            let (now, later) = rest.split_at(count);
            if part.get(at..at + count) != Some(now) {
                return Err(ArchivesError::Differs(file));
            }
            (position, rest) = (position + count, later);
        }
    }
    match position as u64 == length {
        true => Ok(()),
        false => Err(ArchivesError::Differs(file)),
    }
}
