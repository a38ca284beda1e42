//! The ids of requests, by which a writer finds out whether a cut write has happened.
//!
//! A writer has some slots, each a key in etcd. A commit takes a free slot and writes a new id to
//! its key, on condition that the key has not changed since the slot was last used.
//!
//! | slot | event | next |
//! |---|---|---|
//! | new | the first id is written | ready |
//! | ready | a commit is answered | ready; new after a failed condition |
//! | ready | a commit is cut, or fails at one of two members | in doubt |
//! | in doubt | the key has the id: the commit has happened | ready |
//! | in doubt | the key has another value, and is deleted in the same step | new; the commit can never happen, because its condition on the key fails |
//!
//! The keys belong to the name of the writer, which is that of a server. So a restarted server uses
//! the keys of its earlier process, and none are left behind. If two processes use one name by
//! mistake, conditions on the key fail and commits are repeated.
//!
//! The proof of absence deletes the key because etcd refuses writes, but no deletions, if it has no
//! space.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use crate::client::{Client, Fault, NEXT_MEMBER, ONE_MEMBER};
use crate::guards::{has_value, is_at};
use crate::keys::Keys;
use crate::messages::{
    Compare, DeleteRangeRequest, PutRequest, RangeRequest, Request, RequestOp, TxnRequest,
};

/// Commits of one writer at a time. Each has one slot.
pub(crate) const SLOTS: usize = 16;

/// The longest wait for an answer to a commit.
const ANSWER: Duration = Duration::from_millis(1000);
/// The longest time of a commit, with the proof of its outcome. A client then still reaches another
/// server within two seconds. The election of a leader takes less with the recommended options.
const OUTCOME: Duration = Duration::from_millis(1600);

/// One slot.
#[derive(Debug)]
pub(crate) struct Slot {
    key: Bytes,
    /// The revision of the key; 0 while the slot is new.
    revision: i64,
}

/// The outcome of a commit.
#[derive(Debug)]
pub(crate) enum Attempt {
    Committed(i64),
    /// A condition failed. The database's last transaction is given.
    Conflict(i64),
    /// It has not happened and will not.
    Failed(Fault),
    /// The same, and the cluster has answered since.
    Lost,
    /// It may have happened or may still happen.
    InDoubt(String),
}

/// All slots of a writer.
pub(crate) fn slots(keys: &Keys, writer: &str) -> Vec<Slot> {
    let slots = (0..SLOTS).map(|slot| Slot {
        key: keys.slot(writer, slot),
        revision: 0,
    });
    slots.collect()
}

/// What a commit needs.
pub(crate) struct Commit {
    pub(crate) compare: Vec<Compare>,
    pub(crate) success: Vec<RequestOp>,
}

impl Slot {
    /// Commits, within [`OUTCOME`]. On [`Attempt::InDoubt`] the slot must be freed by
    /// [`Slot::resolve`] with `id`.
    pub(crate) async fn commit(
        &mut self,
        client: &Client,
        last: &Bytes,
        id: &Bytes,
        commit: Commit,
    ) -> Attempt {
        let begun = Instant::now();
        let left = |limit: Duration| limit.saturating_sub(begun.elapsed());
        if self.revision == 0 {
            let put = TxnRequest {
                success: vec![put(self.key.clone(), Bytes::from_static(b"new"))],
                ..TxnRequest::default()
            };
            match client.txn(&put, ANSWER).await {
                Ok(answer) => self.revision = answer.revision(),
                Err(fault) => return Attempt::Failed(fault),
            }
        }
        let Commit {
            mut compare,
            mut success,
        } = commit;
        compare.push(is_at(self.key.clone(), self.revision));
        success.push(put(self.key.clone(), id.clone()));
        let request = TxnRequest {
            compare,
            success,
            failure: vec![read(last), read(&self.key)],
        };
        let (answer, is_another_under_way) = client.txn_at_two(request, left(ANSWER)).await;
        match answer {
            Ok(answer) if answer.succeeded => {
                self.revision = answer.revision();
                Attempt::Committed(self.revision)
            }
            Ok(answer) => {
                let last = answer.row(0).map_or(0, |row| row.mod_revision);
                if !is_another_under_way {
                    self.revision = answer.row(1).map_or(0, |row| row.mod_revision);
                    return Attempt::Conflict(last);
                }
                // The other copy may have happened before this one failed, or may happen now.
                match self.outcome(client, id, left(OUTCOME), NEXT_MEMBER).await {
                    Ok(Some(revision)) => Attempt::Committed(revision),
                    Ok(None) => Attempt::Conflict(last),
                    Err(fault) => Attempt::InDoubt(fault.to_string()),
                }
            }
            // The transaction that fills the space is done in spite of this answer.
            Err(fault)
                if is_another_under_way || matches!(fault, Fault::Unknown(_) | Fault::NoSpace) =>
            {
                match self.outcome(client, id, left(OUTCOME), NEXT_MEMBER).await {
                    Ok(Some(revision)) => Attempt::Committed(revision),
                    Ok(None) if matches!(fault, Fault::Unknown(_)) => Attempt::Lost,
                    Ok(None) => Attempt::Failed(fault),
                    Err(_) => Attempt::InDoubt(fault.to_string()),
                }
            }
            Err(fault) => Attempt::Failed(fault),
        }
    }

    /// Finds out whether the commit with `id` has happened: its revision, or `None` if it never
    /// will. Writers no longer wait for it.
    pub(crate) async fn resolve(
        &mut self,
        client: &Client,
        id: &Bytes,
    ) -> Result<Option<i64>, Fault> {
        self.outcome(client, id, ANSWER, ONE_MEMBER).await
    }

    async fn outcome(
        &mut self,
        client: &Client,
        id: &Bytes,
        patience: Duration,
        one_member: Duration,
    ) -> Result<Option<i64>, Fault> {
        let request = TxnRequest {
            compare: vec![has_value(self.key.clone(), id.clone())],
            success: vec![read(&self.key)],
            failure: vec![
                Request::Delete(DeleteRangeRequest {
                    key: self.key.clone(),
                    range_end: Bytes::new(),
                })
                .into(),
            ],
        };
        let answer = client.eager_txn(&request, patience, one_member).await?;
        match answer.row(0).filter(|_| answer.succeeded) {
            Some(row) => {
                self.revision = row.mod_revision;
                Ok(Some(row.mod_revision))
            }
            None => {
                self.revision = 0;
                Ok(None)
            }
        }
    }
}

pub(crate) fn put(key: Bytes, value: Bytes) -> RequestOp {
    Request::Put(PutRequest { key, value }).into()
}

fn read(key: &Bytes) -> RequestOp {
    Request::Range(RangeRequest {
        key: key.clone(),
        ..RangeRequest::default()
    })
    .into()
}
