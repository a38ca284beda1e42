//! The administrative acts and their records in the audit log.
//!
//! A handler of an administrator's operation calls [`mark_act`], before the call can be refused,
//! and [`add_detail`] with the subject of the act. When the call has ended, [`crate::service`]
//! records it with its outcome. In between, the note belongs to the call's task. So handlers need
//! not pass it on, and a call that is no act only pays for an empty note. The note does not follow
//! work to the threads that may wait: facts known there are noted before or after that work.
//!
//! A record is one RPC, as in OpenAFS, since each RPC is allowed or refused by itself. The RPCs of
//! one `vos` command on a volume are one transaction of this server. Their records carry its number
//! as `transaction`, from TransCreate or CreateVolume to EndTrans.
//!
//! Recorded operations:
//!
//! * every change by AFSVol;
//! * SetVolumeStatus and FlushCPS, allowed or not;
//! * operations that only administrators may do: StoreACL, a new owner or group, set-id bits.

use std::cell::RefCell;
use std::future::Future;
use std::sync::Arc;

use cellar_auth::audit::{Audit, Detail, Details, Record};
use cellar_rpc::IncomingCall;
use cellar_wire::ids::AfsTime;

use crate::config::WallClock;
use crate::session::Sessions;

/// The details of an act.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Act(Details);

tokio::task_local! {
    static ACT: RefCell<Option<Act>>;
}

/// Runs a call's handler. Returns its outcome and its note.
pub(crate) async fn observe<T>(handler: impl Future<Output = T>) -> (T, Option<Act>) {
    let noted = async {
        let outcome = handler.await;
        let act = ACT.with(|act| act.borrow_mut().take());
        (outcome, act)
    };
    ACT.scope(RefCell::new(None), noted).await
}

/// Marks this call as an administrative act.
pub(crate) fn mark_act() {
    let _unobserved = ACT.try_with(|act| {
        act.borrow_mut().get_or_insert_default();
    });
}

/// Adds a detail to the act. Does nothing if the call is no act.
pub(crate) fn add_detail(key: &'static str, value: impl Detail) {
    let _unobserved = ACT.try_with(|act| {
        if let Some(Act(details)) = act.borrow_mut().as_mut() {
            details.push((key, value.json()));
        }
    });
}

/// Writes acts to the log.
pub(crate) struct Acts {
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) clock: WallClock,
    pub(crate) audit: Audit,
}

impl Acts {
    /// Writes an act to the log.
    pub(crate) fn record(
        &self,
        call: &IncomingCall,
        procedure: &'static str,
        Act(details): Act,
        code: i32,
    ) {
        let who = self.sessions.identify(call.caller());
        let record = Record::new(
            AfsTime::after_1970((self.clock)()),
            procedure,
            &who,
            call.address(),
            code,
        );
        self.audit.record(record.with_all(details));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_has_its_own_note() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        runtime.block_on(async {
            mark_act();
            add_detail("nothing", 0);
            let ((), none) = observe(async { add_detail("volume", 1) }).await;
            assert_eq!(none, None, "not an act");
            let (seven, noted) = observe(async {
                mark_act();
                add_detail("volume", 1);
                tokio::task::yield_now().await;
                mark_act();
                add_detail("name", "root.cell");
                7
            })
            .await;
            let details = vec![("volume", 1.into()), ("name", "root.cell".into())];
            assert_eq!((seven, noted), (7, Some(Act(details))));
        });
    }
}
