//! Requests that do not come through the device (FUSE over io_uring).

use std::fmt;
use std::io;
use std::sync::Arc;

use crate::Filesystem;
use crate::request::RequestWithSender;
use crate::session::SessionEventLoop;

/// Where the reply to one request goes.
pub trait ReplyPath: fmt::Debug + Send + Sync {
    /// Takes the reply, as it would be written to the device. Called once a request, from any thread.
    ///
    /// # Errors
    /// It cannot be sent.
    fn send(&self, reply: &[io::IoSlice<'_>]) -> io::Result<()>;
}

/// Hands requests to the file system.
pub struct Dispatcher<FS: Filesystem>(pub(crate) SessionEventLoop<FS>);

impl<FS: Filesystem> fmt::Debug for Dispatcher<FS> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Dispatcher").field(&self.0.thread_name).finish()
    }
}

impl<FS: Filesystem> Dispatcher<FS> {
    /// Hands over one request as it would be read from the device, aligned to 8 bytes.
    ///
    /// # Errors
    /// It is none.
    pub fn dispatch(&self, request: &[u8], reply: Arc<dyn ReplyPath>) -> io::Result<()> {
        let sender = self.0.ch.sender().by(reply);
        let Some(request) = RequestWithSender::new(sender, request) else {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "Invalid request",
            ));
        };
        request.dispatch(&self.0);
        Ok(())
    }
}

/// A thread beside those that read the device, for as long as the session lives.
pub struct Worker<FS: Filesystem> {
    /// Its name.
    pub name: String,
    /// Called when the device's threads have been started: from then on it works.
    pub start: Box<dyn FnOnce(Dispatcher<FS>) + Send>,
    /// Called when the device's threads have ended. It has ended, too, when this returns.
    pub stop: Box<dyn FnOnce() + Send>,
}

impl<FS: Filesystem> fmt::Debug for Worker<FS> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}
