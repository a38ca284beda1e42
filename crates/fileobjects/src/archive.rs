//! Copies of files in archives: made, used to wipe files from the online devices, and recalled.
//!
//! An archive is a device with the flag `OSD_ARCHIVAL`. It speaks the protocol of all devices; no
//! file is placed on it. A copy is one object with all bytes of one version of a file, so it can be
//! read without the layout that the file had. The states of a file and the changes between them are
//! at the head of `volume/src/operations/archive.rs`.
//!
//! 1. **A copy is bound to the name of its bytes**
//!    ([`Contents`](cellar_wire::object::Contents)). The reader holds the layout with which it
//!    began. If a store replaces the bytes meanwhile, the copy is removed.
//! 2. **A copy counts after a comparison.** The server hashes the bytes that it sends, and the
//!    archive returns the MD5 of the bytes that it has. A recall compares length and BLAKE3 with
//!    the record before the file is online again.
//! 3. **A wipe asks first.** The archive must confirm object, version and length of each copy that
//!    is counted. Only then one change of the record takes the file off its objects.
//! 4. **A recall makes new objects of the same version.** Their serial numbers are from the upper
//!    half, as those of repairs are. So stores, clones and recalls never choose the same object.
//! 5. **One recall of a file runs at a time.** Further callers wait for the same one.
//! 6. **Errors have a culprit.** Other bytes than recorded make a copy bad, and the next copy is
//!    read. An archive that is silent, full or busy changes nothing.
//! 7. **Volumes travel with their copies.** A receiver of the same cell gets the copies, and no
//!    byte is recalled. Others get the bytes straight from an archive (`reading`), and the file
//!    stays wiped here. Garbage collection alone removes a copy that a record named. It asks every
//!    server.
//!
//! 8. **Copies are verified for ever.** A job reads each copy back at intervals, slowly, and
//!    compares it (`verifying`). The record says when its bytes were last compared.
//!
//! After a crash at any moment the record is the old one or the new one. Objects that no record
//! names are found by garbage collection.

mod copy_reader;
mod copying;
mod reading;
mod recall;
mod sums;
mod verifying;
mod wiping;

pub use reading::{ArchivedBytes, InArchives};
pub(crate) use recall::Recalls;
pub use verifying::Verified;
