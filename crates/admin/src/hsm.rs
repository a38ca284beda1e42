//! Copies of files in archives: make, wipe, recall, list. The operations of `cellar hsm`.

use std::time::Duration;

use cellar_client::{Client, Node};
use cellar_wire::afsosd::{Archive, ListCopies, PinFile, Recall, UnpinFile, VerifyCopies, Wipe};
use cellar_wire::ids::ViceId;
use cellar_wire::object::ArchiveCopy;
use cellar_wire::{AbortCode, Procedure};
use serde::Serialize;

use crate::error::{Error, Result, is_unknown_there};
use crate::osd::Device;

/// Time between two attempts of a recall that takes long.
const AGAIN: Duration = Duration::from_secs(1);

/// The most bytes of the remark of a pin.
const REMARK_BYTES: usize = 128;

/// A copy of a file in an archive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Copy {
    /// The number of the archive.
    pub osd: u32,
    /// Its name; empty if the cell has no such device any more.
    pub osd_name: String,
    /// `good`, `bad`, or `older` for a copy of bytes that the file had before.
    pub state: &'static str,
    /// The data version that was copied.
    pub data_version: u64,
    /// Length in bytes.
    pub length: u64,
    /// When it was made, in seconds since 1970.
    pub made: u64,
    /// When its bytes were last read back and compared, in seconds since 1970; `None`: not since it
    /// was made.
    pub verified: Option<u64>,
    /// The object on the device, as `osd examine` takes it.
    pub object: String,
    /// BLAKE3 of the bytes, in hexadecimal digits.
    pub blake3: String,
    /// MD5 of the bytes, in hexadecimal digits.
    pub md5: String,
}

/// The copies of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Copies {
    /// The given path.
    pub path: String,
    /// The fid that the path leads to.
    pub fid: String,
    /// Length in bytes.
    pub length: u64,
    /// Whether the file is in objects. Only such files have copies of their present bytes.
    pub in_objects: bool,
    /// Whether the bytes are on online devices or on the file server.
    pub online: bool,
    /// The copies, the oldest first.
    pub copies: Vec<Copy>,
}

impl Copies {
    /// The archives that have good copies of the present bytes.
    pub fn good(&self) -> impl Iterator<Item = u32> {
        let good = self.copies.iter().filter(|copy| copy.state == "good");
        good.map(|copy| copy.osd)
    }
}

/// Operations on files with copies in archives.
#[derive(Clone, Copy)]
pub struct Archives<'a> {
    client: &'a Client,
}

impl<'a> Archives<'a> {
    /// Operations through `client`.
    pub fn new(client: &'a Client) -> Self {
        Self { client }
    }

    /// The copies of a file. `devices` have the names of the archives.
    ///
    /// # Errors
    /// The caller may not read the file, or its file server knows no archives.
    pub async fn copies(&self, node: &Node, path: &str, devices: &[Device]) -> Result<Copies> {
        let reply = self.call(node, path, &ListCopies { fid: node.fid }).await?;
        let copy = |copy: &ArchiveCopy| Copy {
            osd: copy.osd,
            osd_name: devices
                .iter()
                .find(|device| device.id == copy.osd)
                .map_or_else(String::new, |device| device.name.clone()),
            state: match () {
                () if copy.version != reply.version => "older",
                () if copy.bad => "bad",
                () => "good",
            },
            data_version: copy.data_version,
            length: copy.length,
            made: copy.made,
            verified: Some(copy.verified).filter(|time| *time > 0),
            object: copy.object(node.fid.vnode, node.fid.uniquifier).to_string(),
            blake3: digits(&copy.blake3),
            md5: digits(&copy.md5),
        };
        Ok(Copies {
            path: path.to_owned(),
            fid: node.fid.to_string(),
            length: reply.length,
            in_objects: reply.version != 0,
            online: reply.online,
            copies: reply.copies.iter().map(copy).collect(),
        })
    }

    /// Copies a file to an archive, or finds the good copy that it has. For superusers.
    ///
    /// # Errors
    /// The file is not in objects, is wiped, or changes; the archive does not take it.
    pub async fn archive(&self, node: &Node, path: &str, archive: &Device) -> Result<()> {
        let asked = Archive {
            fid: node.fid,
            osd: archive.id,
        };
        let copied = self.call(node, path, &asked).await;
        let name = &archive.name;
        copied.map(drop).map_err(|error| match error.code() {
            Some(AbortCode::EINVAL) => Error::Usage(format!(
                "{path}: the file is not in objects, so it has no copies in archives ('cellar fs osd' shows it)"
            )),
            Some(AbortCode::VBUSY) => Error::Usage(format!(
                "{path}: the file changes or is wiped; try again"
            )),
            Some(code @ (AbortCode::EIO | AbortCode::ENOSPC | AbortCode::VDISKFULL)) => {
                Error::Usage(format!(
                    "{path}: archive {name} did not take it ({code}); the logs of the file server and of the archive say \
                     more"
                ))
            }
            _ => error,
        })
    }

    /// Reads the copies of a file in an archive back, and compares them. Returns the number of good
    /// copies. For superusers.
    ///
    /// # Errors
    /// A copy is bad, and is marked so. The archive does not deliver a copy; nothing is known then.
    pub async fn verify(&self, node: &Node, path: &str, archive: &Device) -> Result<u32> {
        let asked = VerifyCopies {
            fid: node.fid,
            osd: archive.id,
        };
        let name = &archive.name;
        let verified = self.call(node, path, &asked).await;
        let verified = verified.map_err(|error| match error.code() {
            Some(code @ (AbortCode::EIO | AbortCode::VBUSY)) => Error::Usage(format!(
                "{path}: archive {name} does not deliver its copy ({code}); 'cellar osd list' shows which archives are up"
            )),
            _ => error,
        })?;
        match verified.bad {
            0 => Ok(verified.good),
            bad => Err(Error::Usage(format!(
                "{path}: {bad} bad {} in archive {name}; 'cellar hsm archive' makes a new one while the file is online",
                if bad == 1 { "copy" } else { "copies" }
            ))),
        }
    }

    /// Takes a file off its online devices, if `copies` archives confirm their copies. Returns
    /// whether it was online. For superusers.
    ///
    /// # Errors
    /// Too few archives confirm.
    pub async fn wipe(&self, node: &Node, path: &str, copies: u32) -> Result<bool> {
        let asked = Wipe {
            fid: node.fid,
            copies,
        };
        let wiped = self.call(node, path, &asked).await;
        match wiped {
            Ok(reply) => Ok(reply.length > 0),
            Err(error) if error.code() == Some(AbortCode::EBUSY) => Err(Error::Usage(format!(
                "{path}: the file is pinned; 'cellar hsm pins' lists the pins"
            ))),
            Err(error) if error.code() == Some(AbortCode::EAGAIN) => {
                let known = self.copies(node, path, &[]).await?.good().count();
                Err(Error::Usage(too_few(path, known, copies)))
            }
            Err(error) => Err(error),
        }
    }

    /// Recalls a file, and waits up to `patience` for the end.
    ///
    /// # Errors
    /// No archive has a good copy, or it takes longer.
    pub async fn recall(&self, node: &Node, path: &str, patience: Duration) -> Result<()> {
        let end = tokio::time::Instant::now() + patience;
        loop {
            let asked = Recall { fid: node.fid };
            let recalled = self.call(node, path, &asked).await;
            let error = match recalled {
                Ok(_) => return Ok(()),
                Err(error) => error,
            };
            match error.code() {
                Some(AbortCode::VBUSY) if tokio::time::Instant::now() < end => {
                    tokio::time::sleep(AGAIN).await;
                }
                Some(AbortCode::VBUSY) => {
                    return Err(Error::Usage(format!(
                        "{path}: the recall goes on, and is not finished yet"
                    )));
                }
                Some(AbortCode::EDQUOT) => {
                    return Err(Error::Usage(format!(
                        "{path}: the recall is over the limit of recalls for you, your groups or the volume; try again \
                         later. The log of the file server names the limit; an administrator can change it \
                         (recall-limit), or recall the file"
                    )));
                }
                Some(AbortCode::EIO) => {
                    return Err(Error::Usage(format!(
                        "{path}: no archive delivers a good copy; 'cellar hsm copies' lists them, 'cellar osd list' shows \
                         which archives are up"
                    )));
                }
                _ => return Err(error),
            }
        }
    }

    /// Pins a file, or a directory with all files below it in its volume, on behalf of the caller.
    /// It ends at `until`, in seconds since 1970; 0: never. The remark is cut to 128 bytes.
    ///
    /// # Errors
    /// The caller may not read it, is not known, or asks for too long. Too many pins.
    pub async fn pin(&self, node: &Node, path: &str, until: u64, remark: &str) -> Result<()> {
        let end = remark.floor_char_boundary(REMARK_BYTES);
        let reason = remark.get(..end).unwrap_or_default();
        let asked = PinFile {
            fid: node.fid,
            until,
            reason: reason.try_into().unwrap_or_default(),
        };
        let pinned = self.call(node, path, &asked).await;
        pinned.map(drop).map_err(|error| match error.code() {
            Some(AbortCode::EINVAL) => Error::Usage(format!(
                "{path}: users pin for a year at most; administrators pin for ever"
            )),
            Some(AbortCode::EACCES) => Error::Usage(format!(
                "{path}: a pin needs tokens and the right to read ('cellar login', 'cellar fs listacl')"
            )),
            Some(AbortCode::EAGAIN) => Error::Usage(format!(
                "{path}: you have too many pins; pin directories, or remove pins ('cellar hsm pins')"
            )),
            Some(AbortCode::ENOSPC) => Error::Usage(format!(
                "{path}: the cell has too many pins ('cellar hsm pins')"
            )),
            _ => error,
        })
    }

    /// Removes the pin of an owner; `None`: of the caller.
    ///
    /// # Errors
    /// There is no such pin. Only administrators remove the pins of others.
    pub async fn unpin(&self, node: &Node, path: &str, owner: Option<ViceId>) -> Result<()> {
        let asked = UnpinFile {
            fid: node.fid,
            owner: owner.unwrap_or_default(),
        };
        let removed = self.call(node, path, &asked).await;
        removed.map(drop).map_err(|error| match error.code() {
            Some(AbortCode::ENOENT) => Error::Usage(format!(
                "{path}: this owner has no pin of it; 'cellar hsm pins' lists the pins"
            )),
            _ => error,
        })
    }

    async fn call<P: Procedure>(&self, node: &Node, path: &str, asked: &P) -> Result<P::Reply> {
        let answer = self.client.call_volume(&node.volume, &path, asked).await;
        answer.map_err(|error| match error.code() {
            Some(code) if is_unknown_there(code) => Error::Usage(format!(
                "{path}: the file server knows no archives; it is older, or not Cellar's"
            )),
            Some(AbortCode::EPERM) => Error::Usage(format!(
                "{path}: only administrators of the cell may do this (--localauth, or --admin on the server)"
            )),
            _ => error.into(),
        })
    }
}

/// The reason why a file is not wiped. By its record, `known` archives have good copies.
fn too_few(path: &str, known: usize, needed: u32) -> String {
    match known < needed as usize {
        true => format!(
            "{path}: {known} of the {needed} needed archives have good copies of the present bytes; \
             'cellar hsm archive' makes copies, 'cellar hsm copies' lists them"
        ),
        false => format!(
            "{path}: fewer than {needed} of {known} archives confirm their copies of the present bytes; 'cellar osd list' \
             shows which archives are up, 'cellar hsm copies' lists the copies"
        ),
    }
}

fn digits(words: &[u32]) -> String {
    words.iter().map(|word| format!("{word:08x}")).collect()
}
