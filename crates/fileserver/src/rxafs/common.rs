//! What most handlers do: run on this thread or on one that may wait; make a change, break
//! callbacks and wait until it is durable.

use std::sync::Arc;

use cellar_volume::{AccessList, Changed, Error, VnodeStatus, Volume, nonblocking};
use cellar_wire::ids::Fid;
use cellar_wire::rxafs::AfsFetchStatus;

use crate::abort_map::Refusal;
use crate::access::Access;
use crate::server::Server;
use crate::session::Session;
use crate::status::fetch_status;
use crate::volumes::{Attached, Want};

/// Runs `work` here if it needs not wait for anything, else on a thread of the pool. It may begin
/// several times; the volume has changed nothing when it says that it would wait. If it looks at a directory of which another
/// host has the lease, that is recalled first.
pub(crate) async fn run<T, F>(server: &Arc<Server>, work: F) -> Result<T, Refusal>
where
    F: Fn() -> Result<T, Refusal> + Send + 'static,
    T: Send + 'static,
{
    run_there(server, work, false).await
}

/// The same; `aside`: at once on a thread of the pool.
pub(crate) async fn run_there<T, F>(
    server: &Arc<Server>,
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
            let _inside = server.leases.enter();
            answer = nonblocking(|| Ok(work())).unwrap_or_else(|error| Err(error.into()));
        }
        if let Err(Refusal::Store(Error::WouldBlock)) = answer {
            let inner = server.clone();
            (work, answer) = cellar_rpc::blocking(move || {
                let _inside = inner.leases.enter();
                let answer = work();
                (work, answer)
            })
            .await;
        }
        match answer {
            Err(Refusal::Leased(fid, caller)) => server.recall(fid, caller).await,
            answer => return answer,
        }
    }
}

/// As [`run`], for what looks at no directory.
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

/// What a change has touched: whose promises it breaks.
#[derive(Default)]
pub(crate) struct Touched {
    /// Files and directories with a new status: everybody is told but the originator, who gets it
    /// with the answer. Unused places have volume 0.
    pub(crate) changed: [Fid; 4],
    /// Told to everybody: no answer carries its new status.
    pub(crate) unseen: Option<Fid>,
    /// Gone: its promises are dropped silently, the break of its directory tells.
    pub(crate) deleted: Option<Fid>,
}

impl Touched {
    /// The status of these has changed.
    pub(crate) fn changed<const N: usize>(fids: [Fid; N]) -> Self {
        const { assert!(N <= 4) };
        let mut touched = Self::default();
        touched.changed[..N].copy_from_slice(&fids);
        touched
    }
}

/// Makes a change: applies it, breaks callbacks, and waits until it is durable and everybody was
/// told or is down. `work` checks, applies and says what was touched.
///
/// Applying and collecting promises is one step on one thread, so that a client that goes away
/// between them loses nobody's break.
pub(crate) async fn change<T, F>(
    server: &Arc<Server>,
    session: &Session,
    work: F,
) -> Result<T, Refusal>
where
    F: Fn() -> Result<(Changed<T>, Touched), Refusal> + Send + 'static,
    T: Send + 'static,
{
    let (changed, pending) = {
        let (server, originator) = (server.clone(), session.host_slot());
        let now = session.now.0;
        run(&server.clone(), move || {
            let (changed, touched) = work()?;
            Ok((changed, collect(&server, &touched, originator, now)))
        })
        .await?
    };
    finish(server, changed, pending).await
}

/// Takes the promises that a change breaks out of the table, and starts telling.
pub(crate) fn collect(
    server: &Server,
    touched: &Touched,
    originator: Option<crate::host::HostSlot>,
    now: u32,
) -> crate::callback::Pending {
    if let Some(fid) = touched.deleted {
        server.breaker.forget(fid, now);
        server.locks.forget(fid);
    }
    let used = touched
        .changed
        .iter()
        .position(|fid| fid.volume.0 == 0)
        .unwrap_or(4);
    let mut pending = server
        .breaker
        .collect(&touched.changed[..used], originator, now);
    if let Some(fid) = touched.unseen {
        pending.join(server.breaker.collect(&[fid], None, now));
    }
    pending
}

/// Waits until a change is durable and everybody was told.
pub(crate) async fn finish<T>(
    server: &Server,
    changed: Changed<T>,
    pending: crate::callback::Pending,
) -> Result<T, Refusal> {
    let Changed { outcome, durable } = changed;
    if pending.is_nobody() {
        durable.await?;
    } else {
        let ((), durable) = tokio::join!(server.breaker.told(pending), durable);
        durable?;
    }
    Ok(outcome)
}

/// A fid that names something.
pub(crate) fn check_fid(fid: Fid) -> Result<(), Refusal> {
    if fid.volume.0 == 0 || fid.vnode.0 == 0 {
        Err(Refusal::NoFid)
    } else {
        Ok(())
    }
}

impl Server {
    /// The volume of a fid, for a client's call.
    pub(crate) fn volume_of(&self, fid: Fid, want: Want) -> Result<Attached, Refusal> {
        check_fid(fid)?;
        let attached = self.volumes.for_call(fid.volume, want)?;
        if want == Want::Change && !attached.volume.is_writable() {
            return Err(Refusal::Store(Error::ReadOnly));
        }
        Ok(attached)
    }

    /// The volume of a change that is done, for its answer: whatever has begun to keep clients from
    /// the volume since, they are told what came of the change.
    pub(crate) fn volume_changed(&self, fid: Fid) -> Result<Attached, Refusal> {
        let found = self.volumes.find(fid.volume)?;
        found.map(|(_, attached)| attached).ok_or(Refusal::NoVolume)
    }

    /// The status as the caller sees it, with the locks of now.
    pub(crate) fn show(
        &self,
        session: &Session,
        status: &VnodeStatus,
        access: Access,
    ) -> AfsFetchStatus {
        let locks = self.locks.count(status.fid, session.now.0);
        fetch_status(status, session.identity(), access, locks)
    }
}

/// Status, list and rights of one fid, unless it is another host's for now: what counts as an access of the volume. OpenAFS's count
/// takes in the directory that a file's list is from; here a call counts each vnode it is about.
pub(crate) fn look(
    server: &Server,
    session: &Session,
    attached: &Attached,
    fid: Fid,
) -> Result<(VnodeStatus, Arc<AccessList>, Access), Refusal> {
    server.leases.check(fid, session.host_slot())?;
    let (status, list) = attached.volume.status_and_acl(fid)?;
    attached.volume.count_access();
    server.statistics.looked(status.kind);
    let access = session.identity().access(&list);
    Ok((status, list, access))
}

/// That what a name means, if it is a directory, is not another host's for now: whether it is empty, the holder knows.
pub(crate) fn check_named(
    server: &Server,
    session: &Session,
    volume: &Volume,
    dir: Fid,
    name: &[u8],
) -> Result<(), Refusal> {
    if server.leases.is_empty() {
        return Ok(());
    }
    match volume.lookup(dir, name) {
        Ok(named) => server.leases.check(named, session.host_slot()),
        Err(Error::WouldBlock) => Err(Error::WouldBlock.into()),
        // Whatever is wrong: it is found when the name is used.
        Err(_) => Ok(()),
    }
}

/// Status and rights of a fid that has to be a directory.
pub(crate) fn look_dir(
    server: &Server,
    session: &Session,
    attached: &Attached,
    fid: Fid,
) -> Result<(VnodeStatus, Access), Refusal> {
    let (status, _, access) = look(server, session, attached, fid)?;
    if status.kind != cellar_volume::FileType::Directory {
        return Err(Refusal::Store(Error::NotDirectory));
    }
    Ok((status, access))
}
