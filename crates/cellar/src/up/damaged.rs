//! Options to open partitions and devices although their journal is damaged.

use std::path::Path;

use cellar_volume::{Error, Opening};

use crate::failure::{Failure, Outcome};

/// The option.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Damaged {
    /// Open this partition or device (vicepb, osd2) without the acknowledged changes after the
    /// damage in its journal. These changes are lost. Use it only after a start was refused because
    /// of the damage.
    #[arg(long = "drop-damaged-journal", value_name = "NAME")]
    dropped: Vec<String>,
}

fn name_of(path: &Path) -> &str {
    let name = path.file_name().and_then(|name| name.to_str());
    name.unwrap_or_default()
}

impl Damaged {
    /// Refuses names that the directory does not have.
    pub(crate) fn check(&self, directory: &Path) -> Outcome {
        let is_store = |name: &String| {
            (name.starts_with("vicep") || name.starts_with("osd")) && directory.join(name).is_dir()
        };
        match self.dropped.iter().find(|name| !is_store(name)) {
            None => Ok(()),
            Some(name) => Err(Failure::usage(format!(
                "--drop-damaged-journal {name}: {} has no partition or device of that name",
                directory.display()
            ))),
        }
    }

    /// Returns whether the store in that directory is opened without the changes after the damage.
    pub(crate) fn is_dropped(&self, path: &Path) -> bool {
        self.dropped.iter().any(|name| name == name_of(path))
    }

    /// Reports after the store was opened that the switch was not needed, if so.
    pub(crate) fn note(&self, path: &Path, opening: &Opening) {
        if self.is_dropped(path) && opening.groups_behind == 0 && opening.files_lost.is_empty() {
            let path = path.display();
            tracing::warn!(%path, "the journal is undamaged: start without --drop-damaged-journal");
        }
    }
}

/// The failure to open a store, with advice.
pub(crate) fn failure(what: &str, path: &Path, cause: &Error) -> Failure {
    let hint = match cause {
        Error::DamagedJournal { .. } | Error::LostJournal(_) => format!(
            ". Restore the file if there is a copy of it, or start once with \
             --drop-damaged-journal {} to lose those changes, and scrub it afterwards",
            name_of(path)
        ),
        Error::Damaged(_) => {
            ". If there is no copy, move the directory away, start it as new (--new-partition; for a device, \
             remove it from osds-used), and restore its volumes from dumps"
                .to_owned()
        }
        _ => String::new(),
    };
    Failure::new(format!("{what} {}: {cause}{hint}", path.display()))
}
