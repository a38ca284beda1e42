//! The realms of the cell: their users are known to the cell by their bare names.
//!
//! These are the cell itself (ignoring case), and the realms in the first line of `krb.conf`.
//! Principals in `krb.excl`, one per line, are foreign nevertheless, in upper or lower case. The
//! protection database folds names to lower case, so `Root@REALM` and `root@realm` would both be
//! taken for the cell's `root`.

use std::path::Path;

use crate::Result;
use crate::file::Watched;

/// The realms and exceptions of a server.
pub(crate) struct Realms {
    cell: String,
    local: Watched<Words>,
    excluded: Watched<Words>,
}

#[derive(Default)]
struct Words(Vec<String>);

#[allow(
    clippy::unnecessary_wraps,
    reason = "the form of every parser of a watched file"
)]
fn first_line(_: &Path, bytes: &[u8]) -> Result<Words> {
    let text = String::from_utf8_lossy(bytes);
    let words = text.lines().next().unwrap_or("").split_ascii_whitespace();
    Ok(Words(words.map(str::to_owned).collect()))
}

#[allow(
    clippy::unnecessary_wraps,
    reason = "the form of every parser of a watched file"
)]
fn first_words(_: &Path, bytes: &[u8]) -> Result<Words> {
    let text = String::from_utf8_lossy(bytes);
    let words = text
        .lines()
        .filter_map(|line| line.split_ascii_whitespace().next());
    Ok(Words(words.map(str::to_owned).collect()))
}

impl Realms {
    pub(crate) fn open(directory: &Path, cell: &str) -> Result<Self> {
        Ok(Self {
            cell: cell.to_owned(),
            local: Watched::open(directory.join("krb.conf"), first_line)?,
            excluded: Watched::open(directory.join("krb.excl"), first_words)?,
        })
    }

    /// The cell that qualifies a principal's name; `None` if the principal belongs to this cell.
    pub(crate) fn foreign(&self, name: &str, instance: &str, realm: &str) -> Option<String> {
        if realm.is_empty() || realm.eq_ignore_ascii_case(&self.cell) {
            return None;
        }
        let same = |listed: &String| listed.eq_ignore_ascii_case(realm);
        if self.local.get().0.iter().any(same) {
            let full = match instance {
                "" => format!("{name}@{realm}"),
                _ => format!("{name}.{instance}@{realm}"),
            };
            let excluded = self.excluded.get();
            if !excluded
                .0
                .iter()
                .any(|name| name.eq_ignore_ascii_case(&full))
            {
                return None;
            }
        }
        Some(realm.to_ascii_lowercase())
    }
}
