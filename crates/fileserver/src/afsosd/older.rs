//! ListOlder, ReadOlder: older bytes of files, and removed files, that archives keep for a time.
//!
//! A removed file has the rights of its directory, and the owner and mode that it had. If the
//! directory is gone, only superusers reach the file.

use std::sync::Arc;

use cellar_fileobjects::{ArchivedBytes, InArchives, OlderBytes};
use cellar_rpc::{IncomingCall, blocking};
use cellar_volume::{Error, FileType, RetiredPlace, Volume};
use cellar_wire::acl::Rights;
use cellar_wire::afsosd::{ListOlder, ListOlderReply, OLDER_FILES_MAX, ReadOlder, ReadOlderReply};
use cellar_wire::ids::{Fid, VolumeId};
use cellar_wire::object::Contents;
use cellar_wire::serve::{Handle, HandleStream};
use cellar_wire::{AbortCode, List};

use super::{ObjectService, check_vnode_access, superuser};
use crate::abort_map::Refusal;
use crate::access::Identity;
use crate::rxafs::common::{run, status_and_access};
use crate::services::FileServices;
use crate::session::Session;
use crate::volumes::VolumeAccess;

/// Removed files that are examined for one answer.
const LOOKS_MAX: usize = 16 << 10;

/// No archive keeps the wanted bytes.
const NOT_KEPT: Refusal = Refusal::Code(AbortCode::ENOENT);

impl Handle<ListOlder, IncomingCall> for ObjectService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: ListOlder,
    ) -> Result<ListOlderReply, Refusal> {
        let services = self.services.clone();
        let ListOlder { fid, all, after } = arguments;
        let after = (after.vnode, after.uniquifier);
        if all {
            superuser(&services.sessions, call)?;
            return blocking(move || {
                let volume = services.volumes.of(fid, VolumeAccess::Read)?.volume;
                removed(&services, &volume, after, |_| true)
            })
            .await;
        }
        let session = services.sessions.session(call).await?;
        run(&services.callbacks.clone(), move || {
            list(&services, &session, fid, after)
        })
        .await
    }
}

impl HandleStream<ReadOlder, IncomingCall> for ObjectService {
    async fn handle_stream(
        &self,
        call: &mut IncomingCall,
        arguments: ReadOlder,
    ) -> Result<ReadOlderReply, Refusal> {
        let services = self.services.clone();
        let ReadOlder {
            fid,
            volume,
            version,
        } = arguments;
        let contents = Contents {
            volume: VolumeId(volume),
            version,
        };
        let is_superuser = superuser(&services.sessions, call).is_ok();
        let session = services.sessions.session(call).await?;
        let here = services.clone();
        let file = run(&services.callbacks, move || {
            readable(&here, &session, is_superuser, fid, contents)
        })
        .await?;
        let begun = services.objects.begin_older_read();
        let _reading = begun.ok_or(Refusal::Busy)?;
        let mut left = file.length;
        call.reply(&left);
        let failed = |code| Refusal::Objects(code);
        let mut bytes = ArchivedBytes::begin(&services.objects, file).map_err(failed)?;
        while left > 0 {
            let piece = bytes.next().await.map_err(failed)?;
            left = left.saturating_sub(piece.len() as u64);
            call.write(piece).await.map_err(Refusal::Call)?;
        }
        Ok(ReadOlderReply {})
    }
}

/// The older bytes of a file, or the files that were removed from a directory.
fn list(
    services: &Arc<FileServices>,
    session: &Session,
    fid: Fid,
    after: RetiredPlace,
) -> Result<ListOlderReply, Refusal> {
    let may = |identity: &Identity, status: &cellar_volume::VnodeStatus, rights: Rights, owner| {
        identity.administrator
            || match status.kind {
                FileType::Directory => rights.contains(Rights::LOOKUP | Rights::READ),
                _ => identity.may_fetch_data(status, rights, owner),
            }
    };
    let (volume, status) = check_vnode_access(services, session, (fid, VolumeAccess::Read), may)?;
    if status.kind == FileType::Directory {
        return removed(services, &volume, after, |parent| parent == fid);
    }
    Ok(ListOlderReply {
        files: List::from_iter_cut([services.objects.superseded(&volume, fid)?]),
        more: false,
        next: Fid::default(),
    })
}

/// The removed files behind `after` whose directory `is_wanted`.
fn removed(
    services: &FileServices,
    volume: &Volume,
    after: RetiredPlace,
    is_wanted: impl Fn(Fid) -> bool,
) -> Result<ListOlderReply, Refusal> {
    let bounds = (OLDER_FILES_MAX, LOOKS_MAX);
    let (files, next) = volume.retired_files(after, bounds, |file| is_wanted(file.parent))?;
    let files = files.iter().map(|file| services.objects.removed(file));
    let (vnode, uniquifier) = next.unwrap_or_default();
    Ok(ListOlderReply {
        files: List::from_iter_cut(files),
        more: next.is_some(),
        next: Fid {
            volume: volume.id(),
            vnode,
            uniquifier,
        },
    })
}

/// The wanted bytes of a file that the caller may read.
fn readable(
    services: &Arc<FileServices>,
    session: &Session,
    is_superuser: bool,
    fid: Fid,
    contents: Contents,
) -> Result<InArchives, Refusal> {
    let attached = services.volumes.of(fid, VolumeAccess::Read)?;
    let volume = &attached.volume;
    let older = OlderBytes::find(volume, fid)?.ok_or(Refusal::Store(Error::NoVnode(fid)))?;
    let status = &older.status;
    if !is_superuser {
        // The list of a file is that of its directory.
        let governing = match older.is_removed {
            true => status.access_list_fid(),
            false => fid,
        };
        let (_, _, access) = status_and_access(services, session, &attached, governing)?;
        let identity = session.identity();
        let sees = !older.is_removed || access.caller.contains(Rights::LOOKUP);
        if !sees || !identity.may_fetch_data(status, access.caller, volume.owner()) {
            return Err(Refusal::NoRight);
        }
    }
    older.named(contents).ok_or(NOT_KEPT)
}
