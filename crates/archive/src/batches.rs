//! Batches of requests to an archive that answers each request by itself.
//!
//! Each request has a task. [`crate::Settings::parallel`] of them have a turn at the same time, in
//! the order of their arrival. A request that waits costs a task without buffers. Cancellation and
//! deadline drop the work wherever it is: an upload that is dropped is aborted, and a sink that is
//! not finished discards its bytes.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::Instant;

use crate::request::{
    Driver, FlushRequest, RemoveRequest, Request, RequestId, StageRequest, VerifyRequest,
};
use crate::{Archive, Error};

/// A [`Driver`] over an [`Archive`].
#[derive(Debug)]
pub struct ArchiveDriver {
    archive: Archive,
    turns: Arc<Semaphore>,
    /// The requests that are not completed, with the means to cancel them.
    requests: Arc<Requests>,
}

type Requests = Mutex<HashMap<RequestId, oneshot::Sender<()>>>;

/// A request among [`ArchiveDriver::requests`], until its work has ended.
struct Entry {
    requests: Arc<Requests>,
    turns: Arc<Semaphore>,
    id: RequestId,
    deadline: Option<Instant>,
    cancelled: oneshot::Receiver<()>,
}

impl ArchiveDriver {
    /// A driver for an open archive.
    pub fn new(archive: Archive) -> Self {
        Self {
            turns: Arc::new(Semaphore::new(archive.settings().parallel.max(1))),
            archive,
            requests: Arc::default(),
        }
    }

    /// The archive.
    pub fn archive(&self) -> &Archive {
        &self.archive
    }

    /// Requests that are not completed.
    pub fn unfinished(&self) -> usize {
        self.requests.lock().len()
    }

    fn enter(&self, request: &(impl Request + ?Sized)) -> Entry {
        let id = request.id();
        let (cancel, cancelled) = oneshot::channel();
        self.requests.lock().insert(id, cancel);
        Entry {
            requests: Arc::clone(&self.requests),
            turns: Arc::clone(&self.turns),
            id,
            deadline: request.deadline(),
            cancelled,
        }
    }
}

impl Entry {
    /// Does the work in its turn, unless the request is cancelled or its deadline comes first.
    async fn run<T>(mut self, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        let begun = Instant::now();
        let turns = Arc::clone(&self.turns);
        let in_turn = async {
            let _turn = turns.acquire().await.map_err(|_| Error::Cancelled)?;
            work.await
        };
        let late = async {
            match self.deadline {
                Some(deadline) => tokio::time::sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            Ok(()) = &mut self.cancelled => Err(Error::Cancelled),
            () = late => Err(Error::Slow(begun.elapsed())),
            done = in_turn => done,
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.requests.lock().remove(&self.id);
    }
}

impl Driver for ArchiveDriver {
    fn flush(&self, batch: Vec<Box<dyn FlushRequest>>) {
        for mut request in batch {
            let entry = self.enter(&*request);
            let archive = self.archive.clone();
            tokio::spawn(async move {
                let work = async {
                    let mut source = request.activate().await?;
                    let (key, length) = (request.key(), request.length());
                    archive.put(&key, length, &mut *source).await
                };
                let result = entry.run(work).await;
                request.complete(result);
            });
        }
    }

    fn stage(&self, batch: Vec<Box<dyn StageRequest>>) {
        for mut request in batch {
            let entry = self.enter(&*request);
            let archive = self.archive.clone();
            tokio::spawn(async move {
                let work = async {
                    request.activate().await?;
                    let (key, receipt) = (request.key(), request.receipt());
                    let copy = archive.open_copy(&key, &receipt).await?;
                    let mut sink = request.allocate().await?;
                    archive.read_into(copy, &key, &receipt, &mut *sink).await
                };
                let result = entry.run(work).await;
                request.complete(result);
            });
        }
    }

    fn verify(&self, batch: Vec<Box<dyn VerifyRequest>>) {
        for mut request in batch {
            let entry = self.enter(&*request);
            let archive = self.archive.clone();
            tokio::spawn(async move {
                let work = async {
                    request.activate().await?;
                    archive.verify(&request.key(), &request.receipt()).await
                };
                let result = entry.run(work).await;
                request.complete(result);
            });
        }
    }

    fn remove(&self, batch: Vec<Box<dyn RemoveRequest>>) {
        for mut request in batch {
            let entry = self.enter(&*request);
            let archive = self.archive.clone();
            tokio::spawn(async move {
                let work = async {
                    request.activate().await?;
                    archive.remove(&request.key()).await
                };
                let result = entry.run(work).await;
                request.complete(result);
            });
        }
    }

    fn cancel(&self, id: RequestId) -> bool {
        let request = self.requests.lock().remove(&id);
        request.is_some_and(|cancel| cancel.send(()).is_ok())
    }
}
