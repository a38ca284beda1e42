//! MakeMany, a call of this project: creates entries that a client created locally, with their
//! bytes, one after the other.
//!
//! 1. Nothing is done before the arguments have been checked and all bytes have arrived, and before
//!    other hosts have returned the directories.
//! 2. Consecutive entries of one directory are created in one change of the volume. If that change
//!    is refused, they are created one by one, so one that fails does not affect the others. A
//!    refusal of the call as a whole (the volume is away, or busy) aborts it.
//! 3. Work that would block, or that meets another host's lease, continues where it stopped,
//!    because finished entries are recorded.
//! 4. The call is idempotent: a name that already leads to the same fid counts as created. So a
//!    client whose answer was lost, or whose call was aborted midway, repeats the call.
//! 5. The breaks are delivered, and durability is awaited, once for all entries. Only then is the
//!    outcome of each entry returned.
//! 6. In a volume whose policies may want objects, a file is created empty, and its bytes are
//!    stored as by StoreData. If that fails, the file is removed again.

mod answer;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cellar_rpc::IncomingCall;
use cellar_volume::{Changed, Error, Make, NewVnode, Ticket, VnodeContents, VnodeStatus};
use cellar_wire::acl::Rights;
use cellar_wire::ids::{Fid, VolumeId};
use cellar_wire::rxafs::{
    CreateRequest, CreateRequests, FileType, MAKE_MANY_BYTES_MAX, MakeMany, MakeManyReply,
};
use cellar_wire::serve::HandleStream;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::FileService;
use super::common::{change, dir_status_and_access, run, run_on};
use super::create::{count_new, new_vnode};
use super::names::{check_free, new_name, text};
use super::store_data::{gather, store_gathered};
use super::symlink::may_link;
use crate::abort_map::Refusal;
use crate::access::Access;
use crate::callback::Pending;
use crate::callbacks::Touched;
use crate::host::HostSlot;
use crate::limits::{MAKE_AT_ONCE, MAKE_CHANGE_BYTES, STORE_SLACK_BLOCKS};
use crate::load;
use crate::services::FileServices;
use crate::session::Session;
use crate::statistics::Direction;
use crate::volumes::check_fid;
use crate::volumes::{Attached, VolumeAccess};

impl HandleStream<MakeMany, IncomingCall> for FileService {
    async fn handle_stream(
        &self,
        call: &mut IncomingCall,
        arguments: MakeMany,
    ) -> Result<MakeManyReply, Refusal> {
        let services = &self.services;
        let MakeMany { volume, creates } = arguments;
        let session = services.sessions.session(call).await?;
        let total = check(&creates)?;
        let bodies = bodies(call, &creates, total).await?;
        let aside = creates.len() > MAKE_AT_ONCE || total > MAKE_CHANGE_BYTES / 4;
        let job = Arc::new(Job {
            services: services.clone(),
            session,
            volume,
            state: Mutex::new(State::of(creates.len())),
            creates,
            bodies,
            begun: Instant::now(),
        });
        let begins = job.clone();
        run(&services.callbacks, move || begins.begin()).await?;
        let makes = job.clone();
        run_on(&services.callbacks, move || makes.go_on(), aside).await?;
        job.wait_for_commit_and_breaks().await?;
        job.store_bytes().await?;
        let tells = job.clone();
        let (reply, durable) = run(&services.callbacks, move || tells.reply()).await?;
        for ticket in durable {
            ticket.await?;
        }
        Ok(reply)
    }
}

/// The number of bytes that follow. Checks that every entry is possible.
fn check(creates: &CreateRequests) -> Result<u64, Refusal> {
    let mut total = 0;
    for create in creates {
        let bytes_of_none = create.kind != FileType::File && create.length > 0;
        let text_of_none = create.kind != FileType::Symlink && !create.text.as_bytes().is_empty();
        if create.kind == FileType::Invalid || bytes_of_none || text_of_none {
            return Err(Refusal::Invalid);
        }
        total += u64::from(create.length);
    }
    if total > MAKE_MANY_BYTES_MAX {
        return Err(Refusal::Invalid);
    }
    Ok(total)
}

/// The bytes of each entry, as they arrive.
async fn bodies(
    call: &mut IncomingCall,
    creates: &CreateRequests,
    total: u64,
) -> Result<Vec<Vec<Bytes>>, Refusal> {
    let mut left = total;
    let mut gathered: VecDeque<Bytes> = gather(call, &mut left, total).await?.into();
    let mut bodies = Vec::with_capacity(creates.len());
    for create in creates {
        let (mut body, mut wanted) = (Vec::new(), create.length as usize);
        while wanted > 0 {
            let mut piece = gathered.pop_front().ok_or(Refusal::StoppedSending)?;
            if piece.len() > wanted {
                gathered.push_front(piece.split_off(wanted));
            }
            wanted -= piece.len();
            body.push(piece);
        }
        bodies.push(body);
    }
    Ok(bodies)
}

/// One call.
struct Job {
    services: Arc<FileServices>,
    session: Session,
    volume: VolumeId,
    creates: CreateRequests,
    bodies: Vec<Vec<Bytes>>,
    state: Mutex<State>,
    begun: Instant,
}

/// The progress of a call.
struct State {
    done: Vec<Option<Result<Done, Refusal>>>,
    pending: Pending,
    tickets: Vec<Ticket>,
}

/// An entry that exists.
#[derive(Clone, Copy)]
struct Done {
    status: VnodeStatus,
    /// The caller's rights in the directory of the entry.
    access: Access,
    /// Its bytes are still to be stored.
    lacks_bytes: bool,
}

/// The directory of some entries.
#[derive(Clone, Copy)]
struct ParentDirectory {
    dir: Fid,
    before: VnodeStatus,
    access: Access,
}

impl State {
    fn of(count: usize) -> Self {
        Self {
            done: (0..count).map(|_| None).collect(),
            pending: Pending::default(),
            tickets: Vec::new(),
        }
    }
}

/// Whether a refusal concerns the whole call, and not one of its entries.
fn is_of_call(refusal: &Refusal) -> bool {
    matches!(
        refusal,
        Refusal::NoVolume
            | Refusal::Offline
            | Refusal::Busy
            | Refusal::NotKnownYet
            | Refusal::Moved
            | Refusal::Leased(..)
            | Refusal::Store(
                Error::WouldBlock
                    | Error::NoVolume(_)
                    | Error::Busy(_)
                    | Error::ReadOnly
                    | Error::Stopped(_)
            )
    )
}

impl Job {
    fn attached(&self) -> Result<Attached, Refusal> {
        let root = Fid::root(self.volume);
        self.services.volumes.of(root, VolumeAccess::Change)
    }

    fn dir_of(&self, create: &CreateRequest) -> Fid {
        Fid {
            volume: self.volume,
            vnode: create.dir_vnode,
            uniquifier: create.dir_uniquifier,
        }
    }

    fn fid_of(&self, create: &CreateRequest) -> Fid {
        Fid {
            volume: self.volume,
            vnode: create.vnode,
            uniquifier: create.uniquifier,
        }
    }

    /// The directories, in the order of their first use.
    fn dirs(&self) -> Vec<Fid> {
        let mut dirs = Vec::new();
        for create in &self.creates {
            let dir = self.dir_of(create);
            if !dirs.contains(&dir) {
                dirs.push(dir);
            }
        }
        dirs
    }

    /// Checks that the volume takes changes, and that no other host has the lease of any of the
    /// directories.
    fn begin(&self) -> Result<(), Refusal> {
        self.attached()?;
        let caller = self.session.host_slot();
        let mut dirs = self.dirs().into_iter();
        dirs.try_for_each(|dir| self.services.callbacks.leases.check(dir, caller))
    }

    /// Creates the remaining entries.
    fn go_on(&self) -> Result<(), Refusal> {
        let mut state = self.state.lock();
        let attached = self.attached()?;
        while let Some(first) = state.done.iter().position(Option::is_none) {
            let these = self.batch_from(&state, first);
            let dir = self.dir_of(&self.creates[first]);
            match self.dir_for_insert(&attached, dir) {
                Ok(place) => self.make(&attached, &mut state, place, &these)?,
                Err(refusal) if is_of_call(&refusal) => return Err(refusal),
                Err(refusal) => {
                    for index in these {
                        state.done[index] = Some(Err(refusal.clone()));
                    }
                }
            }
        }
        Ok(())
    }

    /// The entries, starting with the first, that one change can create.
    fn batch_from(&self, state: &State, first: usize) -> Vec<usize> {
        let dir = self.dir_of(&self.creates[first]);
        let mut bytes = 0;
        let fits = |index: &usize| {
            let create = &self.creates[*index];
            bytes += u64::from(create.length);
            let small = *index == first || bytes <= MAKE_CHANGE_BYTES;
            small && self.dir_of(create) == dir && state.done[*index].is_none()
        };
        (first..self.creates.len()).take_while(fits).collect()
    }

    fn dir_for_insert(&self, attached: &Attached, dir: Fid) -> Result<ParentDirectory, Refusal> {
        check_fid(dir)?;
        let (before, access) = dir_status_and_access(&self.services, &self.session, attached, dir)?;
        if !access.caller.contains(Rights::INSERT) {
            return Err(Refusal::NoRight);
        }
        Ok(ParentDirectory {
            dir,
            before,
            access,
        })
    }

    /// Creates some entries of one directory, or records the refusals.
    fn make(
        &self,
        attached: &Attached,
        state: &mut State,
        place: ParentDirectory,
        these: &[usize],
    ) -> Result<(), Refusal> {
        let volume = &attached.volume;
        let later = self.bytes_later(attached);
        let (mut makes, mut indices) = (Vec::new(), Vec::new());
        for &index in these {
            match self.prepare(place, index, later) {
                Ok(make) => {
                    makes.push(make);
                    indices.push(index);
                }
                Err(refusal) if is_of_call(&refusal) => return Err(refusal),
                Err(refusal) => state.done[index] = Some(Err(refusal)),
            }
        }
        if makes.is_empty() {
            return Ok(());
        }
        let born = self.lease_new_directories(&makes);
        let (holder, slack) = (self.session.holder(), u64::from(STORE_SLACK_BLOCKS));
        let context = self.session.context();
        match volume.make(place.dir, holder, &makes, slack, context) {
            Ok(Changed { outcome, durable }) => {
                let touched = Touched::changed([place.dir]);
                let now = self.session.now.0;
                let host = self.session.host_slot();
                state
                    .pending
                    .join(self.services.callbacks.collect(&touched, host, now));
                state.tickets.push(durable);
                for (index, status) in indices.into_iter().zip(outcome.made) {
                    let made = self.count(attached, place, index, status, later);
                    state.done[index] = Some(Ok(made));
                }
                Ok(())
            }
            Err(error) => {
                for (fid, host) in born {
                    self.services.callbacks.leases.end(fid, host);
                }
                if let [index] = indices[..] {
                    return self.refused(attached, state, place, index, error);
                }
                let refusal = Refusal::from(error);
                if is_of_call(&refusal) {
                    return Err(refusal);
                }
                let mut each = indices.iter();
                each.try_for_each(|&index| self.make(attached, state, place, &[index]))
            }
        }
    }

    /// Whether the bytes are stored after the creation, because they may have to become objects.
    fn bytes_later(&self, attached: &Attached) -> bool {
        self.services.objects.is_expected() && attached.volume.policy() != 0
    }

    /// Records why an entry was not created, or that it exists already.
    fn refused(
        &self,
        attached: &Attached,
        state: &mut State,
        place: ParentDirectory,
        index: usize,
        error: Error,
    ) -> Result<(), Refusal> {
        let (create, volume) = (&self.creates[index], &attached.volume);
        let refusal = Refusal::from(error);
        if is_of_call(&refusal) {
            return Err(refusal);
        }
        // Whatever the error was: an existing entry needs no number and no room.
        let outcome = match volume.lookup(place.dir, create.name.as_bytes()) {
            Ok(fid) if fid == self.fid_of(create) => self.existing_entry(attached, place, create),
            Ok(_) => Err(Refusal::Store(Error::Exists)),
            Err(Error::NotFound) => Err(refusal),
            Err(error) => Err(error.into()),
        };
        match outcome {
            Ok(done) => {
                state.tickets.push(volume.last_change(create.vnode));
                state.tickets.push(volume.last_change(place.dir.vnode));
                state.done[index] = Some(Ok(done));
            }
            Err(refusal) if is_of_call(&refusal) => return Err(refusal),
            Err(refusal) => state.done[index] = Some(Err(refusal)),
        }
        Ok(())
    }

    /// The entry to create, if its arguments allow it.
    fn prepare(
        &self,
        place: ParentDirectory,
        index: usize,
        later: bool,
    ) -> Result<Make<'_>, Refusal> {
        let create = &self.creates[index];
        let name = new_name(&create.name)?;
        let target = text(create.text.as_bytes())?;
        check_free(name)?;
        let new: NewVnode = new_vnode(self.session.identity(), &create.in_status);
        let what = match create.kind {
            FileType::File if later => VnodeContents::File(&[]),
            FileType::File => VnodeContents::File(&self.bodies[index]),
            FileType::Directory => VnodeContents::Directory,
            FileType::Symlink if !target.is_empty() => {
                may_link(&self.session, place.access, &new)?;
                VnodeContents::Symlink(target)
            }
            FileType::Symlink | FileType::Invalid => return Err(Refusal::Invalid),
        };
        Ok(Make {
            name,
            vnode: create.vnode,
            uniquifier: create.uniquifier,
            what,
            new,
        })
    }

    /// The existing entry with the same name and fid, for its creator or a caller that may see it.
    fn existing_entry(
        &self,
        attached: &Attached,
        place: ParentDirectory,
        create: &CreateRequest,
    ) -> Result<Done, Refusal> {
        let (identity, volume) = (self.session.identity(), &attached.volume);
        let status = volume.status(self.fid_of(create))?;
        let holder = self.session.holder();
        let own = volume.is_reserved(holder, create.vnode, create.uniquifier);
        if own || identity.may_fetch_status(&status, place.access.caller, volume.owner()) {
            Ok(Done {
                status,
                access: place.access,
                // An interrupted call left the file in this state, between creation and store.
                lacks_bytes: create.length > 0 && status.data_version == 0,
            })
        } else {
            Err(Refusal::Store(Error::Exists))
        }
    }

    /// Grants leases of the directories that are about to be created. No other host has seen them
    /// before their creator sends more.
    fn lease_new_directories(&self, makes: &[Make<'_>]) -> Vec<(Fid, HostSlot)> {
        let Some(host) = self.session.promise_to() else {
            return Vec::new();
        };
        let dirs = makes
            .iter()
            .filter(|make| matches!(make.what, VnodeContents::Directory));
        let fids = dirs.map(|make| Fid {
            volume: self.volume,
            vnode: make.vnode,
            uniquifier: make.uniquifier,
        });
        let term = self.services.callbacks.lease_term;
        fids.filter(|fid| self.services.callbacks.leases.grant_new(*fid, host, term))
            .map(|fid| (fid, host))
            .collect()
    }

    /// Counts the same figures as a CreateFile with its StoreData, a MakeDir or a Symlink.
    fn count(
        &self,
        attached: &Attached,
        place: ParentDirectory,
        index: usize,
        status: VnodeStatus,
        later: bool,
    ) -> Done {
        let (services, session, volume) = (&self.services, &self.session, &attached.volume);
        let create = &self.creates[index];
        count_new(session, volume, &place.before);
        volume.count_access();
        services
            .statistics
            .count_lookup(cellar_volume::FileType::Directory);
        if create.kind == FileType::File {
            let name = create.name.as_bytes();
            services
                .objects
                .note_created(volume, place.dir, status.fid, name);
        }
        let has_bytes = create.length > 0;
        if has_bytes && !later {
            volume.count_access();
            services
                .statistics
                .count_lookup(cellar_volume::FileType::File);
            volume.count_change(session.origin(), &status, session.context());
            self.count_bytes(create, true);
        }
        Done {
            status,
            access: place.access,
            lacks_bytes: has_bytes && later,
        }
    }

    fn count_bytes(&self, create: &CreateRequest, whole: bool) {
        let (bytes, took): (u64, Duration) = (create.length.into(), self.begun.elapsed());
        load::note_bytes(bytes);
        let statistics = &self.services.statistics;
        statistics.transfer(Direction::Store, bytes, whole, took);
    }

    /// Waits until all entries are durable, and all hosts were notified.
    async fn wait_for_commit_and_breaks(&self) -> Result<(), Refusal> {
        let (pending, tickets) = {
            let mut state = self.state.lock();
            let pending = std::mem::take(&mut state.pending);
            (pending, std::mem::take(&mut state.tickets))
        };
        let durable = async {
            for ticket in tickets {
                ticket.await?;
            }
            Ok::<_, Refusal>(())
        };
        let ((), durable) = tokio::join!(
            self.services.callbacks.breaker.wait_for_delivery(pending),
            durable
        );
        durable
    }

    /// Stores the bytes of files that were created empty.
    async fn store_bytes(&self) -> Result<(), Refusal> {
        let lacking: Vec<(usize, Done)> = {
            let state = self.state.lock();
            let done = state.done.iter().enumerate();
            let made = done.filter_map(|(index, done)| match done {
                Some(Ok(done)) if done.lacks_bytes => Some((index, *done)),
                _ => None,
            });
            made.collect()
        };
        for (index, done) in lacking {
            let create = &self.creates[index];
            let data: Arc<[Bytes]> = self.bodies[index].clone().into();
            let (services, session) = (&self.services, &self.session);
            let time = create.in_status.client_mod_time;
            let stored = store_gathered(services, session, done.status.fid, time, data).await;
            self.count_bytes(create, stored.is_ok());
            let outcome = match stored {
                Ok(status) => Ok(Done { status, ..done }),
                Err(refusal) => {
                    self.undo_create(index).await;
                    if is_of_call(&refusal) {
                        return Err(refusal);
                    }
                    Err(refusal)
                }
            };
            self.state.lock().done[index] = Some(outcome);
        }
        Ok(())
    }

    /// Removes a file whose bytes could not be stored. If that fails too, a repeated call finds the
    /// file empty.
    async fn undo_create(&self, index: usize) {
        let (services, session) = (self.services.clone(), self.session.clone());
        let create = &self.creates[index];
        let (dir, fid) = (self.dir_of(create), self.fid_of(create));
        let name = create.name.clone();
        let work = move || {
            let volume = services.volumes.of(dir, VolumeAccess::Change)?.volume;
            if volume.lookup(dir, name.as_bytes())? != fid {
                return Err(Refusal::Store(Error::NotFound));
            }
            let removed = volume.remove_file(dir, name.as_bytes(), session.context())?;
            let touched = Touched {
                deleted: Some(fid),
                ..Touched::changed([dir])
            };
            Ok((removed, touched))
        };
        if let Err(refusal) = change(&self.services.callbacks, &self.session, work).await {
            tracing::warn!(%fid, ?refusal, "a file without its bytes remains");
        }
    }
}
