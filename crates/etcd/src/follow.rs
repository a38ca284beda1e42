//! Keeps the copy in memory up to date by one watch.
//!
//! | state | event | next |
//! |---|---|---|
//! | connecting | the member accepts the watch from the copy's revision + 1 | following |
//! | connecting | no answer | connecting, at the next member, after a pause |
//! | following | events | following; the copy and the history have them |
//! | following | an answer about progress | following |
//! | following | end of the stream, silence, or a revision that others have | connecting |
//! | following | the revision was compacted | reading |
//! | reading | all rows are read at one revision | connecting; the history has the difference |
//!
//! etcd does not split the events of one revision, because the engine does not ask for that. A
//! partial transaction is therefore never seen.
//!
//! Lock order: the copy, then the history. Notices of new revisions are sent without a lock.

use std::sync::Arc;
use std::time::Duration;

use cellar_celldb::{Committed, History, Revision};
use parking_lot::RwLock;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::{Instant, timeout};

use crate::client::{Client, Fault};
use crate::copy::Copy;
use crate::keys::Keys;
use crate::messages::{WatchAction, WatchCreate, WatchProgress, WatchRequest, WatchResponse};
use crate::pages::read_all;
use crate::status::Figures;

const PROGRESS_EVERY: Duration = Duration::from_secs(1);
/// A watch without a sign of life is given up.
const SILENCE: Duration = Duration::from_secs(4);
const CONNECT: Duration = Duration::from_secs(1);
/// The time after which a watch that lacks a known revision is behind.
const ARRIVES_SOON: Duration = Duration::from_millis(300);
const PAUSE: Duration = Duration::from_millis(200);

/// The copy and those that follow it.
pub(crate) struct Followed {
    pub(crate) keys: Keys,
    pub(crate) client: Arc<Client>,
    pub(crate) copy: Arc<RwLock<Copy>>,
    pub(crate) history: Arc<History>,
    pub(crate) figures: Arc<Figures>,
    /// Added to etcd's revisions.
    pub(crate) base: u64,
    /// The revision of the copy.
    pub(crate) reached: watch::Sender<i64>,
    /// The watch lacks a revision that another member has.
    pub(crate) behind: Notify,
}

enum End {
    Compacted,
    Lost(String),
    Behind,
}

impl Followed {
    /// The database's revision of one of etcd.
    pub(crate) fn revision(&self, of_etcd: i64) -> Revision {
        Revision(self.base + u64::try_from(of_etcd).unwrap_or_default())
    }

    /// Runs until it is dropped.
    pub(crate) async fn run(&self) {
        loop {
            let at = self.client.current();
            match self.follow().await {
                End::Compacted => {
                    tracing::warn!("etcd has compacted changes; reading the databases again");
                    if let Err(fault) = self.reload().await {
                        tracing::warn!(%fault, "the databases cannot be read again");
                    }
                }
                End::Lost(reason) => {
                    tracing::debug!(reason, "the watch has ended");
                    self.client.leave(at);
                }
                End::Behind => {
                    tracing::debug!("the watch is behind");
                    self.client.leave(at);
                    continue;
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn follow(&self) -> End {
        let (requests, received) = mpsc::channel(4);
        let (key, range_end) = self.keys.all();
        let create = WatchCreate {
            key,
            range_end,
            start_revision: self.copy.read().revision + 1,
        };
        let action = Some(WatchAction::Create(create));
        if requests.try_send(WatchRequest { action }).is_err() {
            return End::Lost("the stream is closed".to_owned());
        }
        let mut answers = match self.client.watch(received, CONNECT).await {
            Ok(answers) => answers,
            Err(fault) => return End::Lost(fault.to_string()),
        };
        let (mut asked, mut heard) = (Instant::now(), Instant::now());
        loop {
            if asked.elapsed() >= PROGRESS_EVERY {
                let action = Some(WatchAction::Progress(WatchProgress {}));
                let _full = requests.try_send(WatchRequest { action });
                asked = Instant::now();
            }
            let left = PROGRESS_EVERY.saturating_sub(asked.elapsed());
            let answer = tokio::select! {
                answer = timeout(left, answers.message()) => answer,
                () = self.behind.notified() => return End::Behind,
            };
            match answer {
                Err(_) if heard.elapsed() > SILENCE => {
                    return End::Lost("the member is silent".to_owned());
                }
                Err(_) => {}
                Ok(Ok(Some(answer))) => {
                    heard = Instant::now();
                    if answer.canceled {
                        return match answer.compact_revision {
                            0 => End::Lost(answer.cancel_reason),
                            _ => End::Compacted,
                        };
                    }
                    self.apply(&answer);
                }
                Ok(Ok(None)) => return End::Lost("the member ended it".to_owned()),
                Ok(Err(status)) => return End::Lost(status.message().to_owned()),
            }
        }
    }

    /// Applies the events of an answer, revision by revision.
    fn apply(&self, answer: &WatchResponse) {
        let revision_of = |at: usize| {
            let kv = answer.events.get(at).and_then(|event| event.kv.as_ref());
            kv.map_or(0, |kv| kv.mod_revision)
        };
        let mut at = 0;
        let mut newest = None;
        let mut copy = self.copy.write();
        while let Some(rest) = answer.events.get(at..).filter(|rest| !rest.is_empty()) {
            let revision = revision_of(at);
            let count = (at..answer.events.len())
                .take_while(|&other| revision_of(other) == revision)
                .count();
            let events = rest.get(..count).unwrap_or_default();
            at += count;
            // A new watch may repeat what an older one delivered.
            if revision <= copy.revision {
                continue;
            }
            if let Some(changes) = copy.apply(&self.keys, revision, events) {
                let revision = self.revision(revision);
                self.history
                    .publish([Arc::new(Committed { revision, changes })]);
            }
            newest = Some(revision);
        }
        drop(copy);
        if let Some(newest) = newest {
            self.reached.send_replace(newest);
        }
    }

    /// Waits until the copy has a revision of etcd, and reconnects a watch that is behind. Returns
    /// whether the copy has it.
    pub(crate) async fn reaches(&self, revision: i64, patience: Duration) -> bool {
        let mut reached = self.reached.subscribe();
        let soon = reached.wait_for(|reached| *reached >= revision);
        if let Ok(arrived) = timeout(ARRIVES_SOON.min(patience), soon).await {
            return arrived.is_ok();
        }
        self.behind.notify_one();
        let arrives = reached.wait_for(|reached| *reached >= revision);
        matches!(timeout(patience, arrives).await, Ok(Ok(_)))
    }

    /// Reads everything again and publishes the difference.
    async fn reload(&self) -> Result<(), Fault> {
        let fresh = read_all(&self.client, &self.keys).await?;
        let revision = fresh.revision;
        self.figures
            .reloads
            .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        {
            let mut copy = self.copy.write();
            if fresh.revision <= copy.revision {
                return Ok(());
            }
            let changes = copy.difference(&fresh);
            // A restored snapshot has older rows at a later revision of etcd: the last transaction
            // of the database was seen before, and the difference takes transactions back.
            let is_later = self.revision(fresh.last) > self.history.newest();
            let last = match is_later {
                true => fresh.last,
                false => fresh.revision,
            };
            *copy = fresh;
            if is_later || !changes.is_empty() {
                let revision = self.revision(last);
                self.history
                    .publish([Arc::new(Committed { revision, changes })]);
            }
        }
        self.reached.send_replace(revision);
        Ok(())
    }
}
