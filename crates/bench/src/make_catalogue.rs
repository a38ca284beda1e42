//! `cellar bench make-catalogue`: writes volumes of very many files in objects and in archives into
//! a partition whose server is stopped. The records are those of real files; no device has bytes of
//! them. For measuring the census of hierarchical storage.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use cellar_volume::disk::FileDisk;
use cellar_volume::{
    FileType, Options as StoreOptions, Partition, RestoreMode, RestoredInfo, VnodeImage,
    VolumeKind, VolumeSpec,
};
use cellar_wire::List;
use cellar_wire::acl::AccessList;
use cellar_wire::dir::{Directory, Page, VnodeRef};
use cellar_wire::ids::{AfsTime, Uniquifier, ViceId, VnodeId, VolumeId};
use cellar_wire::object::{ArchiveCopies, ArchiveCopy, Layout, Placed, Shape, Wiped};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// Files of one directory.
const FILES_PER_DIRECTORY: u32 = 1000;
/// Version of all objects.
const VERSION: u64 = 1;
/// Sizes are spread evenly over the powers of two from this one, in bits of the number of bytes.
const SIZE_MIN: u32 = 12;
/// The power of two below which all sizes are, in bits.
const SIZE_MAX: u32 = 32;
/// The oldest file was changed less than so long ago, in seconds: three years.
const AGE_MAX: u32 = 3 * 365 * 24 * 3600;

/// Options of `cellar bench make-catalogue`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Example:
  cellar bench make-catalogue --partition cell/vicepa --volumes 100 --files 100000 --policy 2 --devices 2,3 --archives 4

The server of the partition must be stopped. Do not use a partition with files of value.")]
pub struct Options {
    /// Directory of the partition.
    #[arg(long)]
    pub partition: PathBuf,
    /// Number of volumes.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub volumes: u32,
    /// Files of each volume; 0: empty volumes.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(0..=10_000_000))]
    pub files: u32,
    /// Id of the first volume; the others have the ids that follow.
    #[arg(long, default_value_t = 700_000_000)]
    pub first_id: u32,
    /// Number of the policy of the volumes.
    #[arg(long)]
    pub policy: u32,
    /// Numbers of the devices; each file has one object on one of them.
    #[arg(long, value_delimiter = ',', required = true)]
    pub devices: Vec<u32>,
    /// Numbers of the archives; a file with copies has one in each.
    #[arg(long, value_delimiter = ',', required = true)]
    pub archives: Vec<u32>,
    /// Part of the files with copies, per cent.
    #[arg(long, default_value_t = 90, value_parser = clap::value_parser!(u8).range(0..=100))]
    pub copied: u8,
    /// Part of the files that are wiped, of those with copies, per cent.
    #[arg(long, default_value_t = 70, value_parser = clap::value_parser!(u8).range(0..=100))]
    pub wiped: u8,
    /// Seed of sizes, ages and parts.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// Reason why the catalogue is not complete.
#[derive(Debug, thiserror::Error)]
pub enum CatalogueError {
    /// The partition.
    #[error("{0}")]
    Store(#[from] cellar_volume::Error),
    /// Its directory.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// A name does not fit into its directory.
    #[error("a directory cannot take the name {0}")]
    Name(String),
}

/// Writes the volumes, and prints the number of files and the time.
///
/// # Errors
/// [`CatalogueError`]. Volumes that are complete remain.
pub fn run(options: &Options) -> Result<(), CatalogueError> {
    let begun = Instant::now();
    let partition = Partition::open(FileDisk::open(&options.partition)?, StoreOptions::default())?;
    #[allow(clippy::disallowed_methods)] // the records have real times
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = AfsTime(now.map_or(0, |now| now.as_secs() as u32));
    let mut random = StdRng::seed_from_u64(options.seed);
    for number in 0..options.volumes {
        let id = VolumeId(options.first_id.wrapping_add(number));
        let spec = VolumeSpec {
            root: options.files == 0,
            ..VolumeSpec::new(id, format!("catalogue.{}", id.0), ViceId(1), now)
        };
        let volume = partition.create_volume(&spec)?.wait()?;
        if options.files == 0 {
            continue;
        }
        let mut info = volume.info();
        drop(volume);
        let mut restore = partition.begin_restore(id, RestoreMode::Full)?;
        let mut contents = Contents {
            options,
            random: &mut random,
            volume: id,
            now,
        };
        for (image, bytes) in contents.directories()? {
            restore.put(&image)?;
            restore.push(bytes)?;
        }
        for file in 0..options.files {
            restore.put(&contents.file(file))?;
        }
        info.kind = VolumeKind::ReadWrite;
        info.policy = options.policy;
        info.max_quota = 0;
        let restored = RestoredInfo {
            info,
            next_uniquifier: 0,
            received: None,
        };
        restore.commit(restored)?.wait()?;
    }
    let files = u64::from(options.volumes) * u64::from(options.files);
    let seconds = begun.elapsed().as_secs_f64();
    println!(
        "{files} files in {} volumes in {seconds:.1} s",
        options.volumes
    );
    Ok(())
}

/// The vnodes of one volume. Directory `d` has the vnode 2d + 3, file `f` the vnode 2f + 2, and
/// both have the vnode's number as uniquifier.
struct Contents<'a> {
    options: &'a Options,
    random: &'a mut StdRng,
    volume: VolumeId,
    now: AfsTime,
}

impl Contents<'_> {
    fn directory_of(file: u32) -> VnodeId {
        VnodeId(2 * (file / FILES_PER_DIRECTORY) + 3)
    }

    /// The root directory, and a directory for every [`FILES_PER_DIRECTORY`] files.
    fn directories(&self) -> Result<Vec<(VnodeImage, Bytes)>, CatalogueError> {
        let files = self.options.files;
        let count = files.div_ceil(FILES_PER_DIRECTORY);
        let names = (0..count).map(|d| (format!("d{d}"), 2 * d + 3)).collect();
        let mut made = vec![self.directory(VnodeId::ROOT, VnodeId(0), count, names)?];
        for d in 0..count {
            let first = d * FILES_PER_DIRECTORY;
            let last = files.min(first + FILES_PER_DIRECTORY);
            let names = (first..last).map(|f| (format!("f{f}"), 2 * f + 2));
            let vnode = VnodeId(2 * d + 3);
            made.push(self.directory(vnode, VnodeId::ROOT, 0, names.collect())?);
        }
        Ok(made)
    }

    fn directory(
        &self,
        vnode: VnodeId,
        parent: VnodeId,
        below: u32,
        names: Vec<(String, u32)>,
    ) -> Result<(VnodeImage, Bytes), CatalogueError> {
        let target = |number: u32| VnodeRef {
            vnode: VnodeId(number),
            uniquifier: Uniquifier(number),
        };
        let wrong = |name: &str| CatalogueError::Name(name.to_owned());
        let pages = Directory::create(Vec::<Page>::new(), target(vnode.0), target(1));
        let mut directory = pages.map_err(|_| wrong("."))?;
        for (name, number) in names {
            let inserted = directory.insert_missing(name.as_bytes(), target(number));
            inserted.map_err(|_| wrong(&name))?;
        }
        let bytes = Bytes::from(directory.into_pages().concat());
        let image = VnodeImage {
            kind: FileType::Directory,
            mode: 0o755,
            link_count: below + 2,
            parent,
            length: bytes.len() as u64,
            acl: Some(Arc::new(AccessList::administrators_only())),
            ..self.image(vnode.0, 0)
        };
        Ok((image, bytes))
    }

    fn file(&mut self, file: u32) -> VnodeImage {
        let number = 2 * file + 2;
        let power = self.random.random_range(SIZE_MIN..SIZE_MAX);
        let length = self.random.random_range(1u64 << power..2 << power);
        let age = self.random.random_range(0..AGE_MAX);
        let options = self.options;
        let copied = self.random.random_range(0..100) < options.copied;
        let wiped = copied && self.random.random_range(0..100) < options.wiped;
        let device = self.random.random_range(0..options.devices.len());
        let layout = Layout {
            shape: Shape::default(),
            version: VERSION,
            serial: 1 + options.archives.len() as u32,
            volume: self.volume,
            objects: List::from_iter_cut([Placed {
                osd: options.devices[device],
                serial: 1,
                version: VERSION,
                stale: false,
            }]),
        };
        let made = u64::from(self.now.0 - age);
        let copies = (2u32..)
            .zip(&options.archives)
            .map(|(serial, &osd)| ArchiveCopy {
                osd,
                volume: self.volume,
                serial,
                version: VERSION,
                data_version: 1,
                length,
                blake3: [number; 8],
                md5: [number; 4],
                made,
                ..ArchiveCopy::default()
            });
        VnodeImage {
            parent: Self::directory_of(file),
            length,
            copies: copied.then(|| Arc::new(ArchiveCopies::from_iter_cut(copies))),
            wiped: wiped.then(|| Wiped::from(&layout)),
            layout: (!wiped).then(|| Arc::new(layout)),
            ..self.image(number, age)
        }
    }

    /// A file without bytes that was last changed `age` seconds ago.
    fn image(&self, number: u32, age: u32) -> VnodeImage {
        let changed = AfsTime(self.now.0 - age);
        VnodeImage {
            vnode: VnodeId(number),
            uniquifier: Uniquifier(number),
            kind: FileType::File,
            mode: 0o644,
            link_count: 1,
            data_version: 1,
            client_time: changed,
            server_time: changed,
            author: ViceId(1),
            owner: ViceId(1),
            group: ViceId(0),
            parent: VnodeId::ROOT,
            length: 0,
            acl: None,
            layout: None,
            copies: None,
            wiped: None,
            policy: 0,
        }
    }
}
