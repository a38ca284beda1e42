//! The copy of the databases beside them, for the case that they are damaged.
//!
//! A thread writes it at a start, after the databases were verified, and at a clean stop. It also
//! writes it within a minute after changes have ceased, and every hour while changes continue.
//! Writing copies takes at most a fiftieth of the time. An export asks for a copy at once.

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

/// A message to the thread.
enum Wanted {
    /// Write a copy now, and answer with the reason if that fails.
    Copy(SyncSender<Result<(), String>>),
    /// Write the last copy and end.
    End,
}

/// Messages that wait for the thread. It is busy for as long as a copy takes.
const WAITING_MAX: usize = 4;

/// The thread. Dropping this value writes the last copy.
pub(super) struct Copies {
    wanted: SyncSender<Wanted>,
    thread: Option<JoinHandle<()>>,
    to: PathBuf,
}

/// Asks for copies, from any thread that may block.
#[derive(Clone)]
pub(super) struct Copier {
    wanted: SyncSender<Wanted>,
    to: PathBuf,
}

impl Copier {
    /// Writes a copy of the present databases, unless there is one, and returns its path.
    ///
    /// # Errors
    /// The reason, as a sentence.
    pub(super) fn copy_now(&self) -> Result<PathBuf, String> {
        let (answer, answered) = sync_channel(1);
        let ended = |_| "the server ends".to_owned();
        let asked = self.wanted.send(Wanted::Copy(answer));
        asked.map_err(|_| "the server ends".to_owned())?;
        answered.recv().map_err(ended)??;
        Ok(self.to.clone())
    }
}

impl Copies {
    /// Starts to keep a copy of `db` at `to`.
    pub(super) fn start(db: Arc<Embedded>, to: PathBuf) -> std::io::Result<Self> {
        let (wanted, asked) = sync_channel(WAITING_MAX);
        let place = to.clone();
        let thread = std::thread::Builder::new()
            .name("db-copy".to_owned())
            .spawn(move || run(&db, &place, &asked, PACE))?;
        Ok(Self {
            wanted,
            thread: Some(thread),
            to,
        })
    }

    pub(super) fn copier(&self) -> Copier {
        Copier {
            wanted: self.wanted.clone(),
            to: self.to.clone(),
        }
    }
}

fn save(db: &Embedded, to: &Path) -> Result<(), String> {
    db.save_copy(to).map_err(|cause| {
        tracing::error!(path = %to.display(), %cause, "cannot write the copy of the databases");
        cause.to_string()
    })
}

fn run(db: &Embedded, to: &Path, asked: &Receiver<Wanted>, pace: Pace) {
    // The reason of a failure is in the log.
    let quietly = |_failed: Result<(), String>| ();
    let mut answer: Option<SyncSender<Result<(), String>>> = None;
    loop {
        let (begun, copied) = (Instant::now(), db.revision());
        let saved = save(db, to);
        if let Some(answer) = answer.take() {
            // The caller may have gone.
            let _gone = answer.send(saved);
        }
        let (took, mut seen) = (begun.elapsed(), copied);
        let mut pause = pace.look.max(took * REST);
        loop {
            match asked.recv_timeout(pause) {
                Err(RecvTimeoutError::Timeout) => {}
                Ok(Wanted::Copy(wanted)) => {
                    answer = Some(wanted);
                    break;
                }
                Ok(Wanted::End) | Err(RecvTimeoutError::Disconnected) => {
                    return quietly(save(db, to));
                }
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
        // A thread that has ended takes no message.
        let _ended = self.wanted.send(Wanted::End);
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
    fn beside(pace: Pace, work: impl FnOnce(&Embedded, &Path, &Copier)) {
        let home = tempfile::tempdir().expect("a directory");
        let to = home.path().join("cell.copy");
        let db = Embedded::open(&home.path().join("cell.redb")).expect("databases");
        let (wanted, asked) = sync_channel(1);
        let copier = Copier {
            wanted,
            to: to.clone(),
        };
        std::thread::scope(|scope| {
            let (db, to) = (&db, &to);
            scope.spawn(move || run(db, to, &asked, pace));
            work(db, to, &copier);
            drop(copier);
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
        beside(pace, |db, to, _| {
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
        beside(pace, |db, to, _| {
            let begun = Instant::now();
            let mut value = 0;
            while check_export(to).map_or(0, |copy| copy.revision) < 5 {
                write(db, value);
                value += 1;
                assert!(begun.elapsed() < Duration::from_secs(30), "no copy");
            }
        });
    }

    #[test]
    fn a_copy_that_is_asked_for_has_the_last_change() {
        let pace = Pace {
            look: Duration::from_secs(3600),
            longest: Duration::from_secs(3600),
        };
        beside(pace, |db, _, copier| {
            for value in 0..3 {
                write(db, value);
                let copy = copier.copy_now().expect("copied");
                let revision = check_export(&copy).expect("a copy").revision;
                assert_eq!(revision, db.revision().0);
            }
        });
    }
}
