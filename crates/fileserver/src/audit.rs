//! Which calls are administrative acts, and what the audit log says of them.
//!
//! A handler that does what only an administrator may calls [`act`], before anything can be
//! refused, and [`about`] for what it is about. When the call has ended, [`crate::service`] records
//! it with its outcome. In between the note belongs to the call's task, so that handlers need not
//! pass it on, and a call that is no act pays for an empty one. It does not go with work to the
//! threads that may wait: what is known there is noted before or after.
//!
//! Recorded: every change by AFSVol; SetVolumeStatus and FlushCPS, allowed or not; and what an
//! administrator does that others may not: StoreACL, a new owner or group, set-id bits.

use std::cell::RefCell;
use std::future::Future;

use cellar_auth::audit::Record;
use cellar_rpc::IncomingCall;

use crate::server::Server;

/// What an act is about.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Act(Vec<(&'static str, String)>);

tokio::task_local! {
    static ACT: RefCell<Option<Act>>;
}

/// Runs a call's handler, and returns its note beside its outcome.
pub(crate) async fn observe<T>(handler: impl Future<Output = T>) -> (T, Option<Act>) {
    let noted = async {
        let outcome = handler.await;
        let act = ACT.with(|act| act.borrow_mut().take());
        (outcome, act)
    };
    ACT.scope(RefCell::new(None), noted).await
}

/// This call is an administrative act.
pub(crate) fn act() {
    let _unobserved = ACT.try_with(|act| {
        act.borrow_mut().get_or_insert_default();
    });
}

/// What the act is about. Nothing, if the call is none.
pub(crate) fn about(key: &'static str, value: impl ToString) {
    let _unobserved = ACT.try_with(|act| {
        if let Some(Act(details)) = act.borrow_mut().as_mut() {
            details.push((key, value.to_string()));
        }
    });
}

impl Server {
    /// Writes an act to the log.
    pub(crate) fn record_act(
        &self,
        call: &IncomingCall,
        procedure: &'static str,
        Act(details): Act,
        code: i32,
    ) {
        let who = self.identify(call.caller());
        let mut record = Record::new(self.now(), procedure, &who, call.address(), code);
        for (key, value) in details {
            record = record.with(key, value);
        }
        self.config.audit.record(record);
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
            act();
            about("nothing", 0);
            let ((), none) = observe(async { about("volume", 1) }).await;
            assert_eq!(none, None, "not an act");
            let (seven, noted) = observe(async {
                act();
                about("volume", 1);
                tokio::task::yield_now().await;
                act();
                about("name", "root.cell");
                7
            })
            .await;
            let details = [("volume", "1"), ("name", "root.cell")];
            let details = details.map(|(key, value)| (key, value.to_owned()));
            assert_eq!((seven, noted), (7, Some(Act(details.into()))));
        });
    }
}
