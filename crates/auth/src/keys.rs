//! The cell's keys on a server. Several versions are valid at once: a ticket names the version that
//! sealed it, and new tickets are sealed with the newest.
//!
//! To change the key without downtime:
//!
//! 1. Add the new key to every server (`add`, `import_keytab`).
//! 2. Give it to the KDC.
//! 3. When the last ticket sealed with the old key has expired, remove the old key (`retire`).
//!
//! New keys are added to `KeyFileExt`. The keys of an `rxkad.keytab` beside it count too.
//!
//! Single DES keys (`KeyFile`, encryption types 1 to 3) are not used, whatever file they are in. An
//! attacker who has seen one ticket can search for such a key (OPENAFS-SA-2013-003).

mod key_file_ext;
mod keytab;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::file::{self, Watched};
use crate::{Enctype, Error, Result, SecretKey};
use key_file_ext::{KeyFileExt, RXKAD_KRB5, Record};
use keytab::{Entry, Keytab};

/// The version and type of a key, without its secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyInfo {
    /// Its version.
    pub kvno: u32,
    /// Its type.
    pub enctype: Enctype,
}

/// The cell's keys on a server.
pub struct Keys {
    key_file_ext: Watched<KeyFileExt>,
    keytab: Watched<Keytab>,
}

impl Keys {
    pub(crate) fn open(directory: &Path) -> Result<Self> {
        let keys = Self {
            key_file_ext: Watched::open(directory.join("KeyFileExt"), KeyFileExt::parse)?,
            keytab: Watched::open(directory.join("rxkad.keytab"), Keytab::parse)?,
        };
        for path in [keys.key_file_ext.path(), keys.keytab.path()] {
            if fs::metadata(path).is_ok_and(|metadata| metadata.mode() & 0o077 != 0) {
                tracing::warn!(path = %path.display(), "other accounts of this machine can read the cell's keys");
            }
        }
        Ok(keys)
    }

    fn all(&self) -> Vec<(KeyInfo, SecretKey)> {
        let key_file_ext = self.key_file_ext.get();
        let records = key_file_ext
            .records
            .iter()
            .filter(|record| record.kind == RXKAD_KRB5);
        let records = records.filter_map(|record| usable(record.kvno, record.subtype, &record.key));
        let keytab = self.keytab.get();
        let entries = keytab.entries.iter();
        let entries =
            entries.filter_map(|entry| usable(entry.kvno, entry.enctype.into(), &entry.key));
        records.chain(entries).collect()
    }

    /// The keys, by version and type. Keys of unsupported types are left out.
    #[must_use]
    pub fn list(&self) -> Vec<KeyInfo> {
        let mut list: Vec<_> = self.all().into_iter().map(|(info, _)| info).collect();
        list.sort_unstable();
        list.dedup();
        list
    }

    /// The key with that version and encryption type.
    #[must_use]
    pub fn find(&self, kvno: u32, enctype: i32) -> Option<SecretKey> {
        let mut all = self.all().into_iter();
        all.find(|(info, _)| info.kvno == kvno && info.enctype.number() == enctype)
            .map(|(_, key)| key)
    }

    /// A key of the newest version. If it has several types, the one that all of OpenAFS 1.8
    /// accepts for localauth is preferred.
    #[must_use]
    pub fn newest(&self) -> Option<(KeyInfo, SecretKey)> {
        let rank = |enctype| Enctype::ALL.iter().position(|&each| each == enctype);
        let all = self.all().into_iter();
        all.min_by_key(|(info, _)| (std::cmp::Reverse(info.kvno), rank(info.enctype)))
    }

    /// Adds a key to `KeyFileExt`. Returns false if it was there already.
    ///
    /// # Errors
    /// [`Error::KeyExists`] for another key of that version and type; [`Error::File`],
    /// [`Error::Malformed`].
    pub fn add(&self, kvno: u32, key: &SecretKey) -> Result<bool> {
        let added = self.add_all(&[(kvno, key.clone())])?;
        Ok(!added.is_empty())
    }

    /// Makes a random key of the next version and adds it. Returns its version and type.
    ///
    /// # Errors
    /// [`Error::File`], [`Error::Malformed`].
    pub fn add_random(&self, enctype: Enctype) -> Result<KeyInfo> {
        let newest = self.list().last().map_or(0, |info| info.kvno);
        let kvno = newest.saturating_add(1);
        self.add(kvno, &SecretKey::random(enctype))?;
        Ok(KeyInfo { kvno, enctype })
    }

    /// Adds the keys of a keytab that belong to the cell: those of `principal` (`afs/cell@REALM`).
    /// Without `principal` these are the keys of `afs`, and of `afs/CELL` for `cell`, in any realm.
    /// Returns the keys that were new.
    ///
    /// # Errors
    /// [`Error::NoKey`] if the keytab has none; [`Error::KeyExists`], [`Error::File`],
    /// [`Error::Malformed`].
    pub fn import_keytab(
        &self,
        path: &Path,
        principal: Option<&str>,
        cell: &str,
    ) -> Result<Vec<KeyInfo>> {
        let keytab = Keytab::parse(path, &file::read(path)?)?;
        let keys: Vec<_> = keytab
            .entries
            .iter()
            .filter(|entry| belongs(entry, principal, cell))
            .filter_map(|entry| usable(entry.kvno, entry.enctype.into(), &entry.key))
            .map(|(info, key)| (info.kvno, key))
            .collect();
        if keys.is_empty() {
            return Err(Error::NoKey);
        }
        self.add_all(&keys)
    }

    /// Writes every key to a keytab of mode 0600, as keys of `principal` (`afs/cell@REALM`).
    /// Returns their number.
    ///
    /// # Errors
    /// [`Error::Name`] for a principal without a realm; [`Error::NoKey`]; [`Error::File`].
    pub fn export_keytab(&self, path: &Path, principal: &str) -> Result<usize> {
        let named = || Error::Name(principal.to_owned());
        let (name, realm) = principal.rsplit_once('@').ok_or_else(named)?;
        let components = name.split('/').map(|part| part.as_bytes().to_vec());
        let components: Vec<_> = components.collect();
        let mut all = self.all();
        all.sort_by_key(|(info, _)| *info);
        let entries: Vec<_> = all
            .iter()
            .map(|(info, key)| Entry {
                realm: realm.as_bytes().to_vec(),
                components: components.clone(),
                time: 0,
                kvno: info.kvno,
                enctype: u16::try_from(info.enctype.number()).unwrap_or(0),
                key: zeroize::Zeroizing::new(key.expose().to_vec()),
            })
            .collect();
        if entries.is_empty() {
            return Err(Error::NoKey);
        }
        let count = entries.len();
        let bytes = Keytab { entries }.to_bytes().ok_or_else(named)?;
        file::replace(path, &bytes)?;
        Ok(count)
    }

    /// Writes every key to a file in the form of OpenAFS's `KeyFileExt`, mode 0600. Returns their
    /// number.
    ///
    /// # Errors
    /// [`Error::NoKey`]; [`Error::File`].
    pub fn export_key_file_ext(&self, path: &Path) -> Result<usize> {
        let mut all = self.all();
        all.sort_by_key(|(info, _)| *info);
        let records: Vec<_> = all
            .iter()
            .map(|(info, key)| record(info.kvno, key))
            .collect();
        if records.is_empty() {
            return Err(Error::NoKey);
        }
        let count = records.len();
        file::replace(path, &KeyFileExt { records }.to_bytes())?;
        Ok(count)
    }

    /// Removes every key of a version from both files. Returns their number. Tickets sealed with
    /// these keys become useless.
    ///
    /// # Errors
    /// [`Error::File`], [`Error::Malformed`].
    pub fn retire(&self, kvno: u32) -> Result<usize> {
        let removed = self.key_file_ext.change(|file| {
            let mut kept = file.clone();
            kept.records
                .retain(|record| record.kind != RXKAD_KRB5 || record.kvno != kvno);
            let removed = file.records.len() - kept.records.len();
            Ok(((removed > 0).then(|| kept.to_bytes()), removed))
        })?;
        let path = self.keytab.path().to_owned();
        let from_keytab = self.keytab.change(|file| {
            let mut kept = file.clone();
            kept.entries.retain(|entry| entry.kvno != kvno);
            let removed = file.entries.len() - kept.entries.len();
            if removed == 0 {
                return Ok((None, 0));
            }
            let bytes = kept
                .to_bytes()
                .ok_or_else(|| Error::malformed(&path, "cannot be written again"))?;
            Ok((Some(bytes), removed))
        })?;
        Ok(removed + from_keytab)
    }

    fn add_all(&self, keys: &[(u32, SecretKey)]) -> Result<Vec<KeyInfo>> {
        let keytab = self.keytab.get();
        self.key_file_ext.change(|file| {
            let mut changed = file.clone();
            let mut added = Vec::new();
            for (kvno, key) in keys {
                let enctype = key.enctype();
                let number = enctype.number().unsigned_abs();
                let known = changed.records.iter().filter(|record| {
                    record.kind == RXKAD_KRB5 && record.kvno == *kvno && record.subtype == number
                });
                let known = known.map(|record| &record.key);
                let beside = keytab
                    .entries
                    .iter()
                    .filter(|entry| entry.kvno == *kvno && u32::from(entry.enctype) == number);
                let beside = beside.map(|entry| &entry.key);
                match known.chain(beside).next() {
                    Some(bytes) if bytes[..] == *key.expose() => {}
                    Some(_) => {
                        return Err(Error::KeyExists {
                            kvno: *kvno,
                            enctype: enctype.number(),
                        });
                    }
                    None => {
                        changed.records.push(record(*kvno, key));
                        added.push(KeyInfo {
                            kvno: *kvno,
                            enctype,
                        });
                    }
                }
            }
            Ok(((!added.is_empty()).then(|| changed.to_bytes()), added))
        })
    }
}

/// Whether a keytab's entry is a key of the cell.
fn belongs(entry: &Entry, principal: Option<&str>, cell: &str) -> bool {
    match principal {
        Some(principal) => entry.principal() == principal,
        None => match &entry.components[..] {
            [name] => name == b"afs",
            [name, instance] => name == b"afs" && instance.eq_ignore_ascii_case(cell.as_bytes()),
            _ => false,
        },
    }
}

fn record(kvno: u32, key: &SecretKey) -> Record {
    Record {
        kind: RXKAD_KRB5,
        kvno,
        subtype: key.enctype().number().unsigned_abs(),
        key: zeroize::Zeroizing::new(key.expose().to_vec()),
    }
}

fn usable(kvno: u32, enctype: u32, bytes: &[u8]) -> Option<(KeyInfo, SecretKey)> {
    let enctype = Enctype::from_number(i32::try_from(enctype).ok()?)?;
    let key = SecretKey::new(enctype, bytes).ok()?;
    Some((KeyInfo { kvno, enctype }, key))
}

/// For [`crate::fuzzing`].
pub(crate) mod fuzzing {
    use std::path::Path;

    use super::{KeyFileExt, Keytab};

    pub(crate) fn key_files(path: &Path, bytes: &[u8]) {
        if let Ok(file) = KeyFileExt::parse(path, bytes) {
            let written = file.to_bytes();
            let again = KeyFileExt::parse(path, &written).map(|file| file.to_bytes());
            assert!(again.is_ok_and(|again| again == written));
        }
        if let Ok(file) = Keytab::parse(path, bytes)
            && let Some(written) = file.to_bytes()
        {
            let again = Keytab::parse(path, &written).map(|file| file.to_bytes());
            assert!(again.is_ok_and(|again| again == Some(written)));
        }
    }
}
