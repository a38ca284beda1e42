//! The copy of the databases beside them, for the case that they are damaged.
//!
//! A thread writes it at a start, after the databases were verified, and at a clean stop. It also
//! writes it within a minute after changes have ceased, and every hour while changes continue.
//! Writing copies takes at most a fiftieth of the time.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cellar_celldb::{CellDb, Embedded};

/// When copies are written.
#[derive(Clone, Copy)]
struct Pace {
    /// Time between two checks whether the databases have changed. If they have not, they rest.
    look: Duration,
    /// The longest time without a copy while changes continue.
    longest: Duration,
}

const PACE: Pace = Pace {
    look: Duration::from_secs(20),
    longest: Duration::from_secs(3600),
};
/// A copy is followed by a pause of at least this many times its duration.
const REST: u32 = 50;

/// The thread. Dropping this value writes the last copy.
pub(super) struct Copies {
    stop: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Copies {
    /// Starts to keep a copy of `db` at `to`.
    pub(super) fn start(db: Arc<Embedded>, to: PathBuf) -> std::io::Result<Self> {
        let (stop, stopped) = sync_channel(1);
        let thread = std::thread::Builder::new()
            .name("db-copy".to_owned())
            .spawn(move || run(&db, &to, &stopped, PACE))?;
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

fn save(db: &Embedded, to: &Path) {
    if let Err(cause) = db.save_copy(to) {
        tracing::error!(path = %to.display(), %cause, "cannot write the copy of the databases");
    }
}

fn run(db: &Embedded, to: &Path, stopped: &Receiver<()>, pace: Pace) {
    loop {
        let (begun, copied) = (Instant::now(), db.revision());
        save(db, to);
        let (took, mut seen) = (begun.elapsed(), copied);
        let mut pause = pace.look.max(took * REST);
        loop {
            match stopped.recv_timeout(pause) {
                Err(RecvTimeoutError::Timeout) => {}
                Ok(()) | Err(RecvTimeoutError::Disconnected) => return save(db, to),
            }
            let now = db.revision();
            let rests = now == seen || begun.elapsed() >= pace.longest;
            if now != copied && rests {
                break;
            }
            seen = now;
            pause = pace.look;
        }
    }
}

impl Drop for Copies {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // The thread has logged its failures.
            let _ended = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use cellar_celldb::{Error, Table, check_export};

    use super::*;

    const TABLE: Table = Table::new("test");

    fn write(db: &Embedded, value: u64) {
        let db: &dyn CellDb = db;
        let written = db.write(|transaction| {
            transaction.put(TABLE, b"key".to_vec(), value.to_be_bytes().to_vec());
            Ok::<_, Error>(())
        });
        written.expect("written");
    }

    /// Runs the thread with a pace, and `work` beside it.
    fn beside(pace: Pace, work: impl FnOnce(&Embedded, &Path)) {
        let home = tempfile::tempdir().expect("a directory");
        let to = home.path().join("cell.copy");
        let db = Embedded::open(&home.path().join("cell.redb")).expect("databases");
        let (stop, stopped) = sync_channel(1);
        std::thread::scope(|scope| {
            let (db, to) = (&db, &to);
            scope.spawn(move || run(db, to, &stopped, pace));
            work(db, to);
            drop(stop);
        });
        let last = check_export(&to).expect("a copy");
        assert_eq!(last.revision, db.revision().0, "the last copy");
    }

    fn wait_for(to: &Path, revision: u64) {
        cellar_until::until_blocking("a copy", || {
            check_export(to).is_ok_and(|copy| copy.revision >= revision)
        });
    }

    #[test]
    fn changed_files_are_copied_when_they_rest() {
        let pace = Pace {
            look: Duration::from_millis(20),
            longest: Duration::from_secs(3600),
        };
        beside(pace, |db, to| {
            for value in 0..2 {
                write(db, value);
                wait_for(to, db.revision().0);
            }
        });
    }

    #[test]
    fn files_in_constant_change_are_copied_in_the_end() {
        let pace = Pace {
            look: Duration::from_millis(20),
            longest: Duration::from_millis(60),
        };
        beside(pace, |db, to| {
            let begun = Instant::now();
            let mut value = 0;
            while check_export(to).map_or(0, |copy| copy.revision) < 5 {
                write(db, value);
                value += 1;
                assert!(begun.elapsed() < Duration::from_secs(30), "no copy");
            }
        });
    }
}
