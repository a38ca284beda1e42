//! The steps common to most handlers. They run work on this thread or on one that may wait. They
//! make a change, break callbacks, and wait until the change is durable.

use std::sync::Arc;

use cellar_fileobjects::{CommitOutcome, Objects, Stored};
use cellar_volume::{AccessList, Changed, Error, StoreSpec, VnodeStatus, Volume, nonblocking};
use cellar_wire::ids::Fid;

use crate::abort_map::Refusal;
use crate::access::Access;
use crate::callbacks::{Callbacks, Touched};
use crate::services::FileServices;
use crate::session::Session;
use crate::volumes::Attached;

/// Runs `work` on this thread if it does not have to wait, and otherwise on a thread of the pool.
/// `work` may start several times; when the volume returns `WouldBlock`, it has changed nothing. If
/// `work` needs a directory of which another host has the lease, the lease is recalled first.
pub(crate) async fn run<T, F>(callbacks: &Arc<Callbacks>, work: F) -> Result<T, Refusal>
where
    F: Fn() -> Result<T, Refusal> + Send + 'static,
    T: Send + 'static,
{
    run_on(callbacks, work, false).await
}

/// As [`run`]. With `aside`, `work` runs on a thread of the pool from the start.
pub(crate) async fn run_on<T, F>(
    callbacks: &Arc<Callbacks>,
    mut work: F,
    aside: bool,
) -> Result<T, Refusal>
where
    F: Fn() -> Result<T, Refusal> + Send + 'static,
    T: Send + 'static,
{
    loop {
        let mut answer = Err(Refusal::Store(Error::WouldBlock));
        if !aside {
            let _inside = callbacks.leases.enter();
            answer = nonblocking(|| Ok(work())).unwrap_or_else(|error| Err(error.into()));
        }
        if let Err(Refusal::Store(Error::WouldBlock)) = answer {
            let inner = callbacks.clone();
            (work, answer) = cellar_rpc::blocking(move || {
                let _inside = inner.leases.enter();
                let answer = work();
                (work, answer)
            })
            .await;
        }
        match answer {
            Err(Refusal::Leased(fid, caller)) => callbacks.recall(fid, caller).await,
            answer => return answer,
        }
    }
}

/// As [`run`], for work that looks at no directory.
pub(crate) async fn run_apart<T, F>(work: F) -> Result<T, Refusal>
where
    F: Fn() -> Result<T, Refusal> + Send + 'static,
    T: Send + 'static,
{
    match nonblocking(|| Ok(work())) {
        Ok(Err(Refusal::Store(Error::WouldBlock))) => cellar_rpc::blocking(work).await,
        Ok(answer) => answer,
        Err(error) => Err(error.into()),
    }
}

/// Makes a change: applies it, breaks callbacks, and waits until it is durable and every host was
/// notified or is down. `work` checks, applies, and returns the touched vnodes.
///
/// Applying the change and collecting the promises is one step on one thread. So no break is lost
/// if a client disconnects between the two.
pub(crate) async fn change<T, F>(
    callbacks: &Arc<Callbacks>,
    session: &Session,
    work: F,
) -> Result<T, Refusal>
where
    F: Fn() -> Result<(Changed<T>, Touched), Refusal> + Send + 'static,
    T: Send + 'static,
{
    let (changed, pending) = {
        let (callbacks, originator) = (callbacks.clone(), session.host_slot());
        let now = session.now.0;
        run(&callbacks.clone(), move || {
            let (changed, touched) = work()?;
            Ok((changed, callbacks.collect(&touched, originator, now)))
        })
        .await?
    };
    finish(callbacks, changed, pending).await
}

/// Waits until a change is durable and all hosts were notified.
pub(crate) async fn finish<T>(
    callbacks: &Callbacks,
    changed: Changed<T>,
    pending: crate::callback::Pending,
) -> Result<T, Refusal> {
    let Changed { outcome, durable } = changed;
    if pending.is_empty() {
        durable.await?;
    } else {
        let ((), durable) = tokio::join!(callbacks.breaker.wait_for_delivery(pending), durable);
        durable?;
    }
    Ok(outcome)
}

/// Makes the change that gives a file the objects that a store has written. `None`: another store
/// changed the file meanwhile, and the written data is removed.
pub(crate) async fn commit_objects(
    callbacks: &Arc<Callbacks>,
    session: &Session,
    stored: Arc<Stored>,
    spec: StoreSpec,
) -> Result<Option<VnodeStatus>, Refusal> {
    let commit = {
        let (inner, session, stored) = (callbacks.clone(), session.clone(), stored.clone());
        run(callbacks, move || {
            let changed = match stored.commit(&spec, session.context()) {
                Ok(CommitOutcome::Done(changed)) => changed,
                Ok(CommitOutcome::Overtaken) => return Ok(Ok(None)),
                Err(Error::WouldBlock) => return Err(Error::WouldBlock.into()),
                Err(error) => return Ok(Err(error)),
            };
            let before = stored.before();
            let (volume, origin) = (stored.volume(), session.origin());
            volume.count_change(origin, before, session.context());
            let touched = Touched::changed([before.fid]);
            let pending = inner.collect(&touched, session.host_slot(), session.now.0);
            Ok(Ok(Some((changed, pending))))
        })
        .await?
    };
    match commit {
        Ok(Some((changed, pending))) => {
            let status = finish(callbacks, changed, pending).await?;
            stored.finish();
            Ok(Some(status))
        }
        Ok(None) => {
            stored.give_up(None);
            Ok(None)
        }
        Err(error) => {
            stored.give_up(Some(&error));
            Err(error.into())
        }
    }
}

/// Makes an attempt that may place a file. If devices or policies are not known yet, waits for them
/// and tries once more.
pub(crate) async fn when_loaded<T>(
    objects: &Objects,
    attempt: impl AsyncFn() -> Result<T, Refusal>,
) -> Result<T, Refusal> {
    let is_not_known = |refusal: &Refusal| matches!(refusal, Refusal::NotKnownYet);
    objects.when_loaded(is_not_known, attempt).await
}

/// Status, list and rights of one fid, unless another host has the lease of it. Each lookup counts
/// as an access of the volume. OpenAFS also counts the directory whose list governs a file; here a
/// call counts each vnode that it names.
pub(crate) fn status_and_access(
    services: &FileServices,
    session: &Session,
    attached: &Attached,
    fid: Fid,
) -> Result<(VnodeStatus, Arc<AccessList>, Access), Refusal> {
    services.callbacks.leases.check(fid, session.host_slot())?;
    let (status, list) = attached.volume.status_and_acl(fid)?;
    attached.volume.count_access();
    services.statistics.count_lookup(status.kind);
    let access = session.identity().access(&list);
    Ok((status, list, access))
}

/// Checks that the vnode of a name is not a directory that is leased to another host. Only the
/// holder knows whether that directory is empty.
pub(crate) fn check_named(
    callbacks: &Callbacks,
    session: &Session,
    volume: &Volume,
    dir: Fid,
    name: &[u8],
) -> Result<(), Refusal> {
    if callbacks.leases.is_empty() {
        return Ok(());
    }
    match volume.lookup(dir, name) {
        Ok(named) => callbacks.leases.check(named, session.host_slot()),
        Err(Error::WouldBlock) => Err(Error::WouldBlock.into()),
        // Any error appears again when the name is used.
        Err(_) => Ok(()),
    }
}

/// Status and rights of a fid that must be a directory.
pub(crate) fn dir_status_and_access(
    services: &FileServices,
    session: &Session,
    attached: &Attached,
    fid: Fid,
) -> Result<(VnodeStatus, Access), Refusal> {
    let (status, _, access) = status_and_access(services, session, attached, fid)?;
    if status.kind != cellar_volume::FileType::Directory {
        return Err(Refusal::Store(Error::NotDirectory));
    }
    Ok((status, access))
}
