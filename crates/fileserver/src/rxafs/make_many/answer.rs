//! The reply of MakeMany:
//!
//! * for each entry its status and a promise, or the reason why it was not created;
//! * for each directory its present status;
//! * the remaining time of the caller's leases of directories.

use cellar_volume::{Error, Ticket};
use cellar_wire::ids::Fid;
use cellar_wire::rxafs::{AfsFetchStatus, ChangedDirectory, CreateResult, MakeManyReply};
use cellar_wire::{AbortCode, List};

use super::{Done, Job};
use crate::abort_map::Refusal;
use crate::rxafs::common::dir_status_and_access;
use crate::rxafs::create::shown_new;
use crate::rxafs::promise::NO_PROMISE;
use crate::status::vol_sync;
use crate::volumes::Attached;
use crate::volumes::check_fid;

impl Job {
    /// The reply, and the tickets that must be ready before it is sent.
    pub(super) fn reply(&self) -> Result<(MakeManyReply, Vec<Ticket>), Refusal> {
        let attached = self.services.volumes.changed(Fid::root(self.volume))?;
        let mut durable = Vec::new();
        let mut directories = Vec::new();
        for dir in self.dirs() {
            directories.push(self.show_dir(&attached, dir)?);
            durable.push(attached.volume.last_change(dir.vnode));
        }
        let state = self.state.lock();
        let results = state.done.iter().flatten().map(|done| match done {
            Ok(done) => self.show(&attached, done),
            Err(refusal) => self.show_refused(refusal),
        });
        let reply = MakeManyReply {
            results: List::from_iter_cut(results),
            directories: List::from_iter_cut(directories),
            sync: vol_sync(&attached.volume),
        };
        Ok((reply, durable))
    }

    fn show(&self, attached: &Attached, done: &Done) -> CreateResult {
        let (services, session) = (&self.services, &self.session);
        let (status, callback) = shown_new(services, session, attached, &done.status, done.access);
        let fid = done.status.fid;
        let lease_secs = if fid.vnode.is_directory() {
            self.lease_secs(fid)
        } else {
            0
        };
        CreateResult {
            code: AbortCode(0),
            status,
            callback,
            lease_secs,
        }
    }

    fn show_refused(&self, refusal: &Refusal) -> CreateResult {
        self.services.statistics.refused(refusal.kind());
        let code = self.code(refusal);
        CreateResult {
            code,
            status: AfsFetchStatus::failed(code),
            callback: NO_PROMISE,
            lease_secs: 0,
        }
    }

    fn show_dir(&self, attached: &Attached, dir: Fid) -> Result<ChangedDirectory, Refusal> {
        let (services, session) = (&self.services, &self.session);
        let looked =
            check_fid(dir).and_then(|()| dir_status_and_access(services, session, attached, dir));
        let (status, lease_secs) = match looked {
            Ok((status, access)) => {
                let shown = services.callbacks.show(session, &status, access);
                (shown, self.lease_secs(dir))
            }
            Err(refusal @ (Refusal::Leased(..) | Refusal::Store(Error::WouldBlock))) => {
                return Err(refusal);
            }
            Err(refusal) => (AfsFetchStatus::failed(self.code(&refusal)), 0),
        };
        Ok(ChangedDirectory {
            vnode: dir.vnode,
            uniquifier: dir.uniquifier,
            status,
            lease_secs,
        })
    }

    /// The time for which the lease of a directory is extended from now on, in seconds; 0 if the
    /// caller does not have it.
    fn lease_secs(&self, dir: Fid) -> u32 {
        let term = self.services.callbacks.lease_term;
        let host = self.session.host_slot();
        match host.is_some_and(|host| self.services.callbacks.leases.extend(dir, host, term)) {
            true => term.as_secs() as u32,
            false => 0,
        }
    }

    fn code(&self, refusal: &Refusal) -> AbortCode {
        let host = self.session.client.host.as_ref();
        refusal.code(host.is_some_and(|host| host.understands_uae()))
    }
}
