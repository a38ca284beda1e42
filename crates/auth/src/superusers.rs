//! The UserList: the users who may do everything on this server, besides the holders of the cell's
//! key.
//!
//! One name per line: `user` or `user.instance`, foreign ones `user@cell`. Lines that begin with a
//! blank are other kinds of identities (OpenAFS writes them for rxgk). They are kept but have no
//! effect here.

use std::path::{Path, PathBuf};

use zeroize::Zeroizing;

use crate::file::Watched;
use crate::{Error, Principal, Result};

/// The longest name that OpenAFS's servers read back.
const NAME_BYTES_MAX: usize = 63;

/// The superusers of a server.
pub struct Superusers {
    file: Watched<UserList>,
    cell: String,
}

#[derive(Default)]
struct UserList {
    /// Every line, also those without a name.
    lines: Vec<String>,
}

impl UserList {
    fn names(&self) -> impl Iterator<Item = &str> {
        self.lines.iter().filter_map(|line| name_of(line))
    }

    fn to_bytes(&self) -> Zeroizing<Vec<u8>> {
        let mut bytes = Zeroizing::new(Vec::new());
        for line in &self.lines {
            bytes.extend_from_slice(line.as_bytes());
            bytes.push(b'\n');
        }
        bytes
    }
}

fn name_of(line: &str) -> Option<&str> {
    if line.starts_with([' ', '\t']) {
        return None;
    }
    line.split_ascii_whitespace().next()
}

#[allow(
    clippy::unnecessary_wraps,
    reason = "the form of every parser of a watched file"
)]
fn parse(_: &Path, bytes: &[u8]) -> Result<UserList> {
    let text = String::from_utf8_lossy(bytes);
    Ok(UserList {
        lines: text.lines().map(str::to_owned).collect(),
    })
}

impl Superusers {
    pub(crate) fn open(path: PathBuf, cell: &str) -> Result<Self> {
        Ok(Self {
            file: Watched::open(path, parse)?,
            cell: cell.to_owned(),
        })
    }

    /// The names in the order of the file.
    #[must_use]
    pub fn list(&self) -> Vec<String> {
        self.file.get().names().map(str::to_owned).collect()
    }

    /// Whether the file names this principal. Case counts in names, but not in cells.
    #[must_use]
    pub fn contains(&self, principal: &Principal) -> bool {
        let list = self.file.get();
        list.names().any(|line| {
            let (user, cell) = match line.split_once('@') {
                Some((user, cell)) => (user, Some(cell)),
                None => (line, None),
            };
            let same_user = match user.strip_prefix(principal.name.as_str()) {
                Some("") => principal.instance.is_empty(),
                Some(rest) => {
                    !principal.instance.is_empty()
                        && rest.strip_prefix('.') == Some(principal.instance.as_str())
                }
                None => false,
            };
            let theirs = principal.cell.as_deref();
            same_user
                && match cell {
                    None => theirs.is_none(),
                    Some(cell) => cell.eq_ignore_ascii_case(theirs.unwrap_or(&self.cell)),
                }
        })
    }

    /// Adds a name. Returns false if it was there already.
    ///
    /// # Errors
    /// [`Error::Name`]; [`Error::File`].
    pub fn add(&self, name: &str) -> Result<bool> {
        let legal = !name.is_empty()
            && name.len() <= NAME_BYTES_MAX
            && name.bytes().all(|byte| byte.is_ascii_graphic());
        if !legal {
            return Err(Error::Name(name.to_owned()));
        }
        self.file.change(|list| {
            if list.names().any(|line| line == name) {
                return Ok((None, false));
            }
            let mut lines = list.lines.clone();
            lines.push(name.to_owned());
            Ok((Some(UserList { lines }.to_bytes()), true))
        })
    }

    /// Removes a name. Returns false if it was not there.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn remove(&self, name: &str) -> Result<bool> {
        self.file.change(|list| {
            if !list.names().any(|line| line == name) {
                return Ok((None, false));
            }
            let others = list.lines.iter().filter(|line| name_of(line) != Some(name));
            let lines = others.cloned().collect();
            Ok((Some(UserList { lines }.to_bytes()), true))
        })
    }
}
