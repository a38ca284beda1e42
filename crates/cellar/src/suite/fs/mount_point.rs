//! mkmount, rmmount: making and removing mount points.

use std::path::Path;

use cellar_client::{Cell, CellName, MountPoint};
use cellar_fuse::control;
use serde_json::json;

use super::{Fs, Invocation};
use crate::failure::{Failure, Failures, Outcome};
use crate::mounted::Mounted;

/// The cell that `-cell` names, by its real name. Programs that follow the mount point must know
/// the name, but aliases are known only to one machine or one mount.
fn named(invocation: &Invocation) -> Outcome<Option<CellName>> {
    let Some(name) = invocation.get("cell") else {
        return Ok(None);
    };
    let name = CellName::new(name)?;
    let Some(mount) = mount_of(invocation) else {
        return Ok(Some(name));
    };
    let lines = mount.lines(control::ALIASES)?;
    let pairs = lines.iter().filter_map(|line| line.split_once(' '));
    let real = pairs
        .filter(|(alias, _)| *alias == name.as_str())
        .find_map(|(_, cell)| CellName::new(cell).ok());
    Ok(Some(real.unwrap_or(name)))
}

/// The `cellar mount` that the mount point will be in, if any.
fn mount_of(invocation: &Invocation) -> Option<Mounted> {
    let path = invocation.required("dir").trim_end_matches('/');
    let above = path.rsplit_once('/').map_or(".", |(above, _)| above);
    Mounted::at(Path::new(above))
}

/// The mount's details of the cell that `-cell` names. The lists of this machine may not have them.
pub(super) fn cells_of_mount(invocation: &Invocation) -> Outcome<Vec<Cell>> {
    let (Some(name), Some(mount)) = (named(invocation)?, mount_of(invocation)) else {
        return Ok(Vec::new());
    };
    let mut cells = mount.cells()?;
    cells.retain(|cell| cell.name == name);
    Ok(cells)
}

impl Fs<'_> {
    pub(super) async fn mkmount(&self) -> Outcome {
        let path = self.invocation.required("dir");
        let volume = self.invocation.required("vol");
        let mount = MountPoint {
            read_write: self.invocation.has("rw"),
            cell: named(self.invocation)?,
            volume: volume.to_owned(),
        };
        if MountPoint::parse(mount.text().as_bytes()).as_ref() != Some(&mount) {
            return Err(Failure::usage(format!("'{volume}' is not a volume's name")));
        }
        let look = !self.invocation.has("fast");
        let made = self.files.make_mount(path, &mount, look).await?;
        match made.doubt {
            None => {}
            Some(cellar_admin::Error::Client(cellar_client::Error::NoSuchVolume {
                cell, ..
            })) => {
                eprintln!("fs: warning, volume {volume} does not exist in cell {cell}.");
            }
            Some(doubt) => eprintln!(
                "fs: warning, cannot check the target of {}: {doubt}",
                made.mount
            ),
        }
        self.changed(&[json!({ "path": path, "text": made.mount.to_string() })])
    }

    pub(super) async fn rmmount(&self) -> Outcome {
        let mut failures = Failures::of("fs");
        let mut all = Vec::new();
        for path in self.invocation.list("dir") {
            let removed = self.files.remove_mount(path).await;
            let removed = failures.note(removed);
            all.extend(removed.map(|()| json!({ "path": path, "removed": true })));
        }
        self.changed(&all)?;
        failures.end()
    }
}
