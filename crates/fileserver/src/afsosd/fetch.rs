//! BeginFetch: the layout of a file and the capabilities to read it, with the file's promise.

use cellar_fileobjects::Grant;
use cellar_rpc::IncomingCall;
use cellar_wire::afsosd::{BeginFetch, BeginFetchReply};
use cellar_wire::serve::Handle;

use super::ObjectService;
use super::{NOT_IN_OBJECTS, grantee};
use crate::abort_map::Refusal;
use crate::rxafs::common::{run, status_and_access};
use crate::rxafs::promise::with_promise;
use crate::status::vol_sync;
use crate::volumes::VolumeAccess;

impl Handle<BeginFetch, IncomingCall> for ObjectService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: BeginFetch,
    ) -> Result<BeginFetchReply, Refusal> {
        let services = &self.services;
        // The reply covers the whole version, so the requested range does not matter.
        let BeginFetch { fid, .. } = arguments;
        let session = services.sessions.session(call).await?;
        if !services.objects.is_used() {
            return Err(NOT_IN_OBJECTS);
        }
        let (layout, status, callback, sync, durable) = {
            let (services, session) = (services.clone(), session.clone());
            run(&services.callbacks.clone(), move || {
                let attached = services.volumes.of(fid, VolumeAccess::Read)?;
                let volume = &attached.volume;
                let read = || {
                    let (status, _, access) =
                        status_and_access(&services, &session, &attached, fid)?;
                    let identity = session.identity();
                    if !identity.may_fetch_data(&status, access.caller, volume.owner()) {
                        return Err(Refusal::NoRight);
                    }
                    loop {
                        let (status, layout) = volume.status_and_layout(fid)?;
                        let layout = layout.ok_or(NOT_IN_OBJECTS)?;
                        if !services.objects.lend(fid, &layout) {
                            return Err(NOT_IN_OBJECTS);
                        }
                        // The layout is unchanged, so a later removal of versions sees this reader.
                        if volume.layout(fid)?.as_ref() == Some(&layout) {
                            return Ok((
                                layout,
                                services.callbacks.show(&session, &status, access),
                            ));
                        }
                    }
                };
                let ((layout, status), callback) =
                    with_promise(&services.callbacks, &session, volume, fid, false, read)?;
                volume.count_read(session.origin());
                let durable = volume.last_change(fid.vnode);
                Ok((layout, status, callback, vol_sync(volume), durable))
            })
            .await?
        };
        durable.await?;
        let grantee = grantee(call, &session);
        let access = services
            .objects
            .grant(fid, &layout, Grant::read(), grantee)?;
        Ok(BeginFetchReply {
            status,
            callback,
            sync,
            access,
        })
    }
}
