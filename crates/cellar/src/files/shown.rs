//! The options that `ls`, `du` and `df` share. In these commands `-h` is no help, as on Unix.

use crate::session::CellOptions;

#[derive(Debug, clap::Args)]
pub(super) struct ShownOptions {
    /// Print sizes as 12K, 3.4M, 1.2G.
    #[arg(short = 'h', long)]
    pub(super) human_readable: bool,
    /// Print JSON.
    #[arg(long)]
    pub(super) json: bool,
    /// Print help.
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    #[command(flatten)]
    pub(super) cell: CellOptions,
}
