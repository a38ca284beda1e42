//! Taking over from a job whose client died.
//!
//! A dead client leaves a locked entry and open transactions. Only activity distinguishes the
//! living from the dead: a transaction with recent calls or moving data has a living owner.
//! Therefore the transactions of a volume group are polled until none of them has changed for a
//! while, and only then are they ended. If there are no transactions, the group is polled for a
//! short time too, because a living job has none between two of its steps.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::Duration;

use cellar_wire::afsvol;
use cellar_wire::ids::VolumeId;
use tokio::time::Instant;

use super::draft::Draft;
use super::job::JobContext;
use super::{Location, Volumes};
use crate::error::{Error, Result};

/// The time for which the administrator waits without a message.
const UNSAID: Duration = Duration::from_secs(2);
/// The time for which there must be no transactions. A living job makes some calls outside of
/// transactions; these are shorter.
const BETWEEN: Duration = Duration::from_secs(1);
/// The interval between polls.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// The time after which the job gives up on a group with activity.
const PATIENCE: Duration = Duration::from_secs(60);

/// The state of a transaction at a poll. It changes with each use.
#[derive(Clone, Debug, PartialEq, Eq)]
struct TransactionState {
    volume: VolumeId,
    used: u32,
    procedure: String,
    /// The packet numbers of a transfer, if data is moving.
    moved: Option<(i32, i32)>,
}

impl Volumes<'_> {
    /// Locks an entry for an operation (`VLOP_*`). If a dead client holds the lock for that
    /// operation, its transactions are ended and the lock is taken over.
    ///
    /// # Errors
    /// The entry is locked for another operation, or there is still activity in the group.
    pub(super) async fn lock_or_take_over(
        &self,
        draft: &Draft,
        operation: u32,
        why: &str,
        also: &[Location],
        context: JobContext<'_>,
    ) -> Result<()> {
        match self.lock_for(draft.read_write, operation, why).await {
            Err(Error::Locked {
                operation: held, ..
            }) if held & operation != 0 => {
                self.end_orphans(draft, also, context).await?;
                self.unlock(draft.read_write).await?;
                self.lock_for(draft.read_write, operation, why).await
            }
            other => other,
        }
    }

    /// Ends the transactions that a dead client left on the volumes of a group. It searches the
    /// servers of the entry's sites and those of `also`, which may have a copy of the read-write
    /// volume.
    ///
    /// # Errors
    /// There is still activity in the group.
    pub(super) async fn end_orphans(
        &self,
        draft: &Draft,
        also: &[Location],
        context: JobContext<'_>,
    ) -> Result<()> {
        let mut volumes = vec![draft.read_write, draft.read_only, draft.backup, draft.clone];
        // The header of the read-write volume names a temporary clone of it.
        for at in draft.read_write_at().iter().chain(also) {
            if let Ok(Some(info)) = self.is_there(*at, draft.read_write).await {
                volumes.push(info.clone);
            }
        }
        volumes.retain(|volume| volume.0 != 0);
        let mut servers: Vec<Ipv4Addr> =
            draft.sites.iter().map(|site| site.server.into()).collect();
        servers.extend(also.iter().map(|at| at.server));
        servers.sort();
        servers.dedup();
        let began = Instant::now();
        let mut said = false;
        let (mut seen, mut since) = (BTreeMap::new(), Instant::now());
        loop {
            let now = self.transactions_of(&servers, &volumes).await;
            let enough = match now.is_empty() {
                true => BETWEEN,
                false => context.stillness,
            };
            if now != seen {
                (seen, since) = (now, Instant::now());
            } else if since.elapsed() >= enough {
                break;
            }
            if began.elapsed() > PATIENCE {
                let at_work: Vec<_> = seen
                    .iter()
                    .map(|((server, number), seen)| {
                        format!("transaction {number} on {server} ({})", seen.procedure)
                    })
                    .collect();
                return Err(Error::Usage(format!(
                    "another client works on volume {}: {}. Wait until it ends; 'vos endtrans' ends \
                     a transaction whose client died",
                    draft.name,
                    at_work.join(", ")
                )));
            }
            if !said && began.elapsed() > UNSAID {
                context.say(&format!(
                    "waiting for transactions of an earlier vos on volume {}",
                    draft.name
                ));
                said = true;
            }
            context
                .or_stop(async {
                    tokio::time::sleep(POLL_INTERVAL).await;
                    Ok(())
                })
                .await?;
        }
        for ((server, number), seen) in seen {
            context.say(&format!(
                "ending transaction {number} on {server}, which an earlier vos left on volume {}",
                seen.volume
            ));
            // The transaction may have expired in the meantime. If it still exists, the next use of
            // the volume fails.
            let _ended = self
                .end(server.into(), number, "Could not end the transaction")
                .await;
        }
        Ok(())
    }

    /// Whether there is a transaction on a volume on one of these servers.
    pub(super) async fn has_transactions(&self, servers: &[Ipv4Addr], volume: VolumeId) -> bool {
        !self.transactions_of(servers, &[volume]).await.is_empty()
    }

    /// The transactions on some volumes. Servers that do not answer are left out, because no
    /// transaction could be ended there.
    async fn transactions_of(
        &self,
        servers: &[Ipv4Addr],
        volumes: &[VolumeId],
    ) -> BTreeMap<(Ipv4Addr, i32), TransactionState> {
        let mut found = BTreeMap::new();
        for server in servers {
            let Ok(reply) = self
                .server((*server).into(), &afsvol::Monitor {}, "status")
                .await
            else {
                continue;
            };
            for info in reply.entries.iter() {
                if volumes.contains(&info.volume) {
                    let seen = TransactionState {
                        volume: info.volume,
                        used: info.time.0,
                        procedure: info.last_procedure.to_string(),
                        moved: (info.call_valid != 0)
                            .then_some((info.read_next, info.transmit_next)),
                    };
                    found.insert((*server, info.trans), seen);
                }
            }
        }
        found
    }
}
