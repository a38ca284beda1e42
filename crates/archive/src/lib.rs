//! Copies of object versions in archives.
//!
//! An archive is a directory or a bucket of S3. A copy in an archive is one more place of an object
//! version (decision 0010). The rules of this crate:
//!
//! 1. **A copy is never rewritten.** Its name ([`ObjectKey`]) has the cell, the object and the
//!    version. A put creates the name or fails. If the name exists with the same bytes, the put
//!    succeeds, so an interrupted put can be repeated. Other bytes are [`Error::Exists`].
//! 2. **A copy is whole or absent.** Bytes go to another name, or to the parts of an upload, and
//!    get their name in one step when all are durable.
//! 3. **Bytes are hashed while they pass.** A put returns a [`Receipt`]: length, BLAKE3 and MD5. A
//!    get and a verification compare all three. A get calls [`Sink::finish`] only after a match.
//! 4. **Memory is bounded.** A transfer holds a few parts ([`limits`]), never a whole copy.
//! 5. **An archive has one owner.** [`Identity`] is an object in the archive: the cell, the
//!    archive's own id, and a counter of the sessions that wrote. An archive of another cell, a
//!    missing identity and an emptied archive are errors before anything is written.
//! 6. **Errors have a culprit.** [`Error::blame`] tells whether the archive, its contents, its
//!    configuration or the caller is at fault. [`Error::is_transient`] tells whether the same
//!    request may succeed later.
//!
//! ## The two interfaces
//!
//! [`Archive`] has one method for each operation on one copy. [`Driver`] has the shape of dCache's
//! nearline driver: batches of requests, each of which is activated, gets space, and is completed
//! with its own result. A driver for a tape system can order a batch by tape. The job engine calls
//! `Driver`; tools for administrators call `Archive`.

mod archive;
mod backend;
mod batches;
mod digest;
mod error;
mod fault;
mod http;
mod identity;
mod key;
pub mod limits;
mod location;
mod reader;
mod request;
mod s3;
mod signing;
mod tls;
mod upload;

pub use archive::Archive;
pub use batches::ArchiveDriver;

pub use digest::{Hasher, Receipt};
pub use error::{Blame, Error};
pub use identity::{Expected, Identity};
pub use key::{ArchiveId, CellId, ObjectKey};
pub use location::{Location, Settings};
pub use request::{
    Driver, FlushRequest, RemoveRequest, Request, RequestId, Sink, Source, StageRequest,
    VerifyRequest,
};
pub use s3::{CredentialSource, S3Location};

/// The result of an operation on an archive.
pub type Result<T, E = Error> = std::result::Result<T, E>;
