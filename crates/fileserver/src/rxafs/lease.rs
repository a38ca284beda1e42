//! ReserveVnodes, LeaseDirectory and ReturnDirectories, calls of this project. A client that
//! creates files locally gets vnode numbers for them, and leases of directories
//! ([`crate::leases`]). It sends its pending creates with MakeMany ([`super::make_many`]).

use cellar_rpc::IncomingCall;
use cellar_volume::{Changed, Error, FileType};
use cellar_wire::acl::Rights;
use cellar_wire::ids::Fid;
use cellar_wire::rxafs::{
    LeaseDirectory, LeaseDirectoryReply, RESERVE_MAX, ReserveVnodes, ReserveVnodesReply,
    ReturnDirectories, ReturnDirectoriesReply,
};
use cellar_wire::serve::Handle;

use super::FileService;
use super::common::{change, run};
use super::fetch_status::status_of;
use crate::abort_map::Refusal;
use crate::callbacks::Touched;
use crate::leases::{Granting, LeaseOutcome};
use crate::session::Session;
use crate::status::vol_sync;
use crate::volumes::{Attached, VolumeAccess, Volumes};

/// Another host uses the directory.
const IN_USE: Refusal = Refusal::Locked;

impl Handle<ReserveVnodes, IncomingCall> for FileService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: ReserveVnodes,
    ) -> Result<ReserveVnodesReply, Refusal> {
        let services = &self.services;
        let ReserveVnodes {
            dir_fid,
            files,
            directories,
        } = arguments;
        let session = services.sessions.session(call).await?;
        let (files, directories) = (files.min(RESERVE_MAX), directories.min(RESERVE_MAX));
        let work = {
            let (services, session) = (services.clone(), session.clone());
            move || {
                let volume = may_make_in(&services.volumes, &session, dir_fid)?.volume;
                let holder = session.holder();
                let Changed { outcome, durable } = volume.reserve(holder, files, directories)?;
                let outcome = (outcome, vol_sync(&volume));
                Ok((Changed { outcome, durable }, Touched::default()))
            }
        };
        let (numbers, sync) = change(&services.callbacks, &session, work).await?;
        Ok(ReserveVnodesReply {
            first_file: numbers.first_file,
            files: numbers.files,
            first_directory: numbers.first_directory,
            directories: numbers.directories,
            first_uniquifier: numbers.first_uniquifier,
            sync,
        })
    }
}

impl Handle<LeaseDirectory, IncomingCall> for FileService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: LeaseDirectory,
    ) -> Result<LeaseDirectoryReply, Refusal> {
        let services = &self.services;
        let LeaseDirectory { dir_fid } = arguments;
        let session = services.sessions.session(call).await?;
        {
            let (services, session) = (services.clone(), session.clone());
            run(&services.callbacks.clone(), move || {
                may_make_in(&services.volumes, &session, dir_fid).map(drop)
            })
            .await?;
        }
        // A host that cannot be called back cannot receive a recall.
        let host = session.promise_to().ok_or(IN_USE)?;
        let term = services.callbacks.lease_term;
        let granting = match services.callbacks.leases.request(dir_fid, host, term) {
            LeaseOutcome::Refused => return Err(IN_USE),
            LeaseOutcome::Renewed => None,
            LeaseOutcome::Begun(number) => {
                let granting = Granting::new(&services.callbacks.leases, dir_fid, number);
                if !services.callbacks.leases.alone().await {
                    return Err(IN_USE);
                }
                // Earlier promises of other hosts are broken now. While the lease is in the table,
                // no other host gets a promise.
                let touched = Touched::changed([dir_fid]);
                let others = services
                    .callbacks
                    .collect(&touched, Some(host), session.now.0);
                services.callbacks.breaker.wait_for_delivery(others).await;
                Some(granting)
            }
        };
        let (status, callback, sync, durable) = {
            let (services, session) = (services.clone(), session.clone());
            run(&services.callbacks.clone(), move || {
                status_of(&services, &session, dir_fid, false)
            })
            .await?
        };
        durable.await?;
        let kept = match granting {
            Some(granting) => callback.expires_in_secs > 0 && granting.grant(host, term),
            None => services.callbacks.leases.extend(dir_fid, host, term),
        };
        if !kept {
            return Err(IN_USE);
        }
        Ok(LeaseDirectoryReply {
            status,
            callback,
            lease_secs: term.as_secs() as u32,
            sync,
        })
    }
}

impl Handle<ReturnDirectories, IncomingCall> for FileService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: ReturnDirectories,
    ) -> Result<ReturnDirectoriesReply, Refusal> {
        let services = &self.services;
        let ReturnDirectories { fids } = arguments;
        let session = services.sessions.session(call).await?;
        if let Some(host) = session.host_slot() {
            for &fid in &fids {
                services.callbacks.leases.end(fid, host);
            }
        }
        Ok(ReturnDirectoriesReply {})
    }
}

/// Checks that the caller may create entries in a directory. The lease is not checked, because the
/// reply contains nothing from the directory.
fn may_make_in(volumes: &Volumes, session: &Session, dir: Fid) -> Result<Attached, Refusal> {
    let attached = volumes.of(dir, VolumeAccess::Change)?;
    let (status, list) = attached.volume.status_and_acl(dir)?;
    if status.kind != FileType::Directory {
        return Err(Refusal::Store(Error::NotDirectory));
    }
    if !session
        .identity()
        .access(&list)
        .caller
        .contains(Rights::INSERT)
    {
        return Err(Refusal::NoRight);
    }
    Ok(attached)
}
