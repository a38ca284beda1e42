//! The copy of the databases beside them, which is there when they are damaged.
//!
//! A thread writes it at a start, after the databases were verified; every hour, if anything has
//! changed; and at a clean stop.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use cellar_celldb::Embedded;

/// How often the copy is written again.
const EVERY: Duration = Duration::from_secs(3600);

/// The thread. Dropping this writes the last copy.
pub(super) struct Copies {
    stop: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Copies {
    /// Begins to keep a copy of `db` at `to`.
    pub(super) fn keep(db: Arc<Embedded>, to: PathBuf) -> std::io::Result<Self> {
        let (stop, stopped) = sync_channel(1);
        let thread = std::thread::Builder::new()
            .name("db-copy".to_owned())
            .spawn(move || run(&db, &to, &stopped))?;
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

fn run(db: &Embedded, to: &std::path::Path, stopped: &Receiver<()>) {
    loop {
        if let Err(cause) = db.save_copy(to) {
            tracing::error!(path = %to.display(), %cause, "no copy of the databases is written");
        }
        match stopped.recv_timeout(EVERY) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(()) | Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    if let Err(cause) = db.save_copy(to) {
        tracing::error!(path = %to.display(), %cause, "no copy of the databases is written");
    }
}

impl Drop for Copies {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // It has logged what it could not do.
            let _ended = thread.join();
        }
    }
}
