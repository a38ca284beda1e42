//! BulkStatus (155) and InlineBulkStatus (65536): the statuses of up to 50 files.
//!
//! The first form fails as a whole with the first fid that fails. The inline form puts the code
//! into that fid's slot.

use std::sync::Arc;

use cellar_rpc::IncomingCall;
use cellar_volume::{Error, Ticket, nonblocking};
use cellar_wire::rxafs::{
    AfsFetchStatus, BulkStatus, BulkStatusReply, Callback, Fids, InlineBulkStatus,
    InlineBulkStatusReply, VolSync,
};
use cellar_wire::serve::Handle;
use cellar_wire::{List, ids::Fid};

use super::FileService;
use super::common::run;
use super::fetch_status::status_of;
use crate::abort_map::Refusal;
use crate::services::FileServices;
use crate::session::Session;

type StatusReply = (AfsFetchStatus, Callback, VolSync);

impl Handle<BulkStatus, IncomingCall> for FileService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: BulkStatus,
    ) -> Result<BulkStatusReply, Refusal> {
        let services = &self.services;
        let BulkStatus { fids } = arguments;
        let session = services.sessions.session(call).await?;
        if fids.is_empty() {
            return Err(Refusal::Invalid);
        }
        let mut results = Results::new(fids.len());
        for found in statuses(services, &session, &fids).await {
            results.add(found?);
        }
        let Results {
            statuses,
            callbacks,
            sync,
        } = results;
        Ok(BulkStatusReply {
            statuses: List::from_iter_cut(statuses),
            callbacks: List::from_iter_cut(callbacks),
            sync: sync.unwrap_or_default(),
        })
    }
}

impl Handle<InlineBulkStatus, IncomingCall> for FileService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: InlineBulkStatus,
    ) -> Result<InlineBulkStatusReply, Refusal> {
        let services = &self.services;
        let InlineBulkStatus { fids } = arguments;
        let session = services.sessions.session(call).await?;
        if fids.is_empty() {
            return Err(Refusal::Invalid);
        }
        let host = session.client.host.as_ref();
        let understands_uae = host.is_some_and(|host| host.understands_uae());
        let mut results = Results::new(fids.len());
        for found in statuses(services, &session, &fids).await {
            match found {
                Ok(found) => results.add(found),
                Err(refusal) => {
                    services.statistics.refused(refusal.kind());
                    results
                        .statuses
                        .push(AfsFetchStatus::failed(refusal.code(understands_uae)));
                    results.callbacks.push(Callback::NONE);
                }
            }
        }
        let Results {
            statuses,
            callbacks,
            sync,
        } = results;
        Ok(InlineBulkStatusReply {
            statuses: List::from_iter_cut(statuses),
            callbacks: List::from_iter_cut(callbacks),
            sync: sync.unwrap_or_default(),
        })
    }
}

/// The statuses of all fids, in their order, once they are durable. The first fid that needs the
/// disk, and all after it, are read on a thread that may wait. So there is one hop, for any number
/// of fids.
async fn statuses(
    services: &Arc<FileServices>,
    session: &Session,
    fids: &Fids,
) -> Vec<Result<StatusReply, Refusal>> {
    let mut looked = Vec::with_capacity(fids.len());
    for (index, &fid) in fids.iter().enumerate() {
        let answer = {
            let _inside = services.callbacks.leases.enter();
            nonblocking(|| Ok(status_of(services, session, fid, true)))
        };
        match answer {
            Ok(Err(Refusal::Store(Error::WouldBlock))) | Err(_) => {
                let (services, session) = (services.clone(), session.clone());
                let rest: Vec<Fid> = fids[index..].to_vec();
                let work = move || {
                    let _inside = services.callbacks.leases.enter();
                    let status = |fid: Fid| status_of(&services, &session, fid, true);
                    rest.into_iter().map(status).collect::<Vec<_>>()
                };
                looked.extend(cellar_rpc::blocking(work).await);
                break;
            }
            Ok(answer) => looked.push(answer),
        }
    }
    let mut found = Vec::with_capacity(looked.len());
    for (mut answer, &fid) in looked.into_iter().zip(fids) {
        if let Err(Refusal::Leased(..)) = answer {
            let (inner, session) = (services.clone(), session.clone());
            answer = run(&services.callbacks, move || {
                status_of(&inner, &session, fid, true)
            })
            .await;
        }
        found.push(match answer {
            Ok((status, callback, sync, durable)) => {
                wait_until_durable((status, callback, sync), durable).await
            }
            Err(refusal) => Err(refusal),
        });
    }
    found
}

async fn wait_until_durable(found: StatusReply, durable: Ticket) -> Result<StatusReply, Refusal> {
    durable.await?;
    Ok(found)
}

struct Results {
    statuses: Vec<AfsFetchStatus>,
    callbacks: Vec<Callback>,
    /// Of the first fid that succeeded.
    sync: Option<VolSync>,
}

impl Results {
    fn new(count: usize) -> Self {
        Self {
            statuses: Vec::with_capacity(count),
            callbacks: Vec::with_capacity(count),
            sync: None,
        }
    }

    fn add(&mut self, (status, callback, sync): StatusReply) {
        self.statuses.push(status);
        self.callbacks.push(callback);
        self.sync.get_or_insert(sync);
    }
}
