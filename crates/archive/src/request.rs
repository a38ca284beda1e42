//! Requests to a driver, in the shape of dCache's nearline driver.
//!
//! A caller hands over a batch of requests. For each of them the driver calls, in this order:
//!
//! | call | meaning |
//! | --- | --- |
//! | `activate` | the driver begins; the caller prepares the source, or refuses |
//! | `allocate` | stage only: the archive is ready to send; the caller provides space |
//! | `complete` | the end, exactly once, with the receipt or the error |
//!
//! A recall from tape may wait for hours between `activate` and `allocate`. So space is taken
//! late, and a source is opened only when its turn has come.

use std::io;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use tokio::time::Instant;

use crate::{Error, ObjectKey, Receipt};

/// The number of a request, unique for its driver. The job engine uses the number of the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// The bytes of an object version, in order, read once.
pub trait Source: Send {
    /// The next bytes, at most `most` of them; empty at the end.
    ///
    /// # Errors
    /// The object cannot be read, or has been changed. The put ends with [`Error::Source`].
    fn read(&mut self, most: usize) -> BoxFuture<'_, io::Result<Bytes>>;
}

/// The new place of a recalled object version.
pub trait Sink: Send {
    /// Appends bytes. They are not verified yet.
    ///
    /// # Errors
    /// The place takes no more. The get ends with [`Error::Sink`].
    fn write(&mut self, bytes: Bytes) -> BoxFuture<'_, io::Result<()>>;

    /// Makes the place valid: all bytes are written and equal those that were archived. A sink that
    /// is dropped without this call must discard its bytes.
    ///
    /// # Errors
    /// As [`Sink::write`].
    fn finish(&mut self) -> BoxFuture<'_, io::Result<()>>;
}

/// The part that all kinds of requests have.
pub trait Request: Send {
    /// The number, for [`Driver::cancel`].
    fn id(&self) -> RequestId;

    /// The copy.
    fn key(&self) -> ObjectKey;

    /// The time at which the request ends with [`Error::Slow`]. `None`: the driver's own patience.
    fn deadline(&self) -> Option<Instant>;
}

/// A request to write a copy.
pub trait FlushRequest: Request {
    /// Bytes of the object version.
    fn length(&self) -> u64;

    /// Provides the bytes. The driver begins.
    fn activate(&mut self) -> BoxFuture<'_, Result<Box<dyn Source>, Error>>;

    /// Ends the request. Must not block.
    fn complete(self: Box<Self>, result: Result<Receipt, Error>);
}

/// A request to read a copy back.
pub trait StageRequest: Request {
    /// The receipt of the put.
    fn receipt(&self) -> Receipt;

    /// The driver begins: it asks the archive for the copy.
    fn activate(&mut self) -> BoxFuture<'_, Result<(), Error>>;

    /// Provides space for [`StageRequest::receipt`]'s length. The archive is ready to send.
    fn allocate(&mut self) -> BoxFuture<'_, Result<Box<dyn Sink>, Error>>;

    /// Ends the request. Must not block.
    fn complete(self: Box<Self>, result: Result<(), Error>);
}

/// A request to read a copy and compare it with its receipt.
pub trait VerifyRequest: Request {
    /// The receipt of the put.
    fn receipt(&self) -> Receipt;

    /// The driver begins.
    fn activate(&mut self) -> BoxFuture<'_, Result<(), Error>>;

    /// Ends the request. Must not block.
    fn complete(self: Box<Self>, result: Result<(), Error>);
}

/// A request to remove a copy. A copy that is not there is removed.
pub trait RemoveRequest: Request {
    /// The driver begins.
    fn activate(&mut self) -> BoxFuture<'_, Result<(), Error>>;

    /// Ends the request. Must not block.
    fn complete(self: Box<Self>, result: Result<(), Error>);
}

/// An archive that takes batches of requests.
///
/// A method takes ownership of the requests and returns at once. It must be called inside a tokio
/// runtime. Each request is completed exactly once, in any order, also after a cancellation. An
/// exception is a runtime that shuts down: its requests are dropped.
pub trait Driver: Send + Sync + 'static {
    /// Writes copies.
    fn flush(&self, batch: Vec<Box<dyn FlushRequest>>);

    /// Reads copies back.
    fn stage(&self, batch: Vec<Box<dyn StageRequest>>);

    /// Compares copies with their receipts.
    fn verify(&self, batch: Vec<Box<dyn VerifyRequest>>);

    /// Removes copies.
    fn remove(&self, batch: Vec<Box<dyn RemoveRequest>>);

    /// Ends a request with [`Error::Cancelled`], as soon as the archive permits. Returns whether
    /// the driver has the request. A request that is about to end may still succeed.
    fn cancel(&self, id: RequestId) -> bool;
}
