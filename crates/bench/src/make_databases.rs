//! `cellar bench make-databases`: writes the location and protection databases of a large cell, for
//! OpenAFS and for Cellar, with the same contents.

use std::fs;
use std::path::PathBuf;

use crate::rxafs::BenchError;

mod openafs_pr;
mod openafs_vl;
mod rows;
mod ubik;

/// Options of `cellar bench make-databases`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  cellar bench make-databases --openafs /var/lib/openafs/db
  cellar db export base --dir cell; cellar bench make-databases --base base --export full; cellar db import full --dir cell

Each volume has three ids and one site, on one of 40 servers. There is a group for 100 users, and each user is in three.")]
pub struct Options {
    /// Number of volumes.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub volumes: u32,
    /// Number of users.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub users: u32,
    /// Directory for vldb.DB0 and prdb.DB0.
    #[arg(long, value_name = "DIR", required_unless_present = "export")]
    pub openafs: Option<PathBuf>,
    /// Export of a new cell of Cellar, whose users and groups are kept.
    #[arg(long, value_name = "FILE", requires = "export")]
    pub base: Option<PathBuf>,
    /// File for Cellar, to be read by 'cellar db import'.
    #[arg(long, value_name = "FILE", requires = "base")]
    pub export: Option<PathBuf>,
}

/// Writes the files.
///
/// # Errors
/// [`BenchError`].
pub fn run(options: &Options) -> Result<(), BenchError> {
    if let Some(directory) = &options.openafs {
        let vldb = openafs_vl::database(options.volumes);
        fs::write(directory.join("vldb.DB0"), vldb)?;
        let prdb = openafs_pr::database(options.users);
        fs::write(directory.join("prdb.DB0"), prdb)?;
    }
    if let (Some(base), Some(export)) = (&options.base, &options.export) {
        let rows = rows::write(base, export, options.volumes, options.users)?;
        println!("{rows} rows written to {}", export.display());
    }
    Ok(())
}
