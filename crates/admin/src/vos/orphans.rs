//! Taking over from a job whose client is gone.
//!
//! What a dead client leaves behind is a locked entry and open transactions. Nobody tells the living
//! from the dead but by what they do: a transaction that is used, or in which data is moving, is
//! somebody's. So the transactions of a volume group are looked at until none of them has moved for
//! a while, and only then are they ended. Where there are none it is looked at for a moment too: a living
//! job has none between two of its steps.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::Duration;

use cellar_wire::afsvol;
use cellar_wire::ids::VolumeId;
use tokio::time::Instant;

use super::draft::Draft;
use super::job::Course;
use super::{Location, Volumes};
use crate::error::{Error, Result};

/// How long an administrator waits without being told what for.
const UNSAID: Duration = Duration::from_secs(2);
/// How long there have to be none: some calls of a living job take less.
const BETWEEN: Duration = Duration::from_secs(1);
/// How often it is looked at meanwhile.
const LOOK: Duration = Duration::from_millis(250);
/// How long somebody else is watched at work before they are left alone.
const PATIENCE: Duration = Duration::from_secs(60);

/// A transaction as it was seen: changes when somebody uses it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    volume: VolumeId,
    used: u32,
    procedure: String,
    /// Data is moving: numbers of packets.
    moved: Option<(i32, i32)>,
}

impl Volumes<'_> {
    /// Locks an entry for an operation (`VLOP_*`). Where a dead client holds the lock for that operation,
    /// what it left is ended and the lock taken over.
    ///
    /// # Errors
    /// The entry is locked for something else, or somebody is still at work there.
    pub(super) async fn lock_or_take_over(
        &self,
        draft: &Draft,
        operation: u32,
        why: &str,
        also: &[Location],
        course: Course<'_>,
    ) -> Result<()> {
        match self.lock_for(draft.read_write, operation, why).await {
            Err(Error::Locked {
                operation: held, ..
            }) if held & operation != 0 => {
                self.end_orphans(draft, also, course).await?;
                self.unlock(draft.read_write).await?;
                self.lock_for(draft.read_write, operation, why).await
            }
            other => other,
        }
    }

    /// Ends the transactions that a dead client left on the volumes of a group, on the servers of its
    /// sites and those of `also`, where a copy of the read-write volume may be.
    ///
    /// # Errors
    /// Somebody is still at work there.
    pub(super) async fn end_orphans(
        &self,
        draft: &Draft,
        also: &[Location],
        course: Course<'_>,
    ) -> Result<()> {
        let mut volumes = vec![draft.read_write, draft.read_only, draft.backup, draft.clone];
        // A temporary clone is known from the header of the volume that it is of.
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
                false => course.stillness,
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
                    "somebody is at work on volume {}: {}. Wait for them; 'vos endtrans' ends a \
                     transaction of somebody who is gone",
                    draft.name,
                    at_work.join(", ")
                )));
            }
            if !said && began.elapsed() > UNSAID {
                course.say(&format!(
                    "waiting for what an earlier vos began on volume {}",
                    draft.name
                ));
                said = true;
            }
            course
                .or_stop(async {
                    tokio::time::sleep(LOOK).await;
                    Ok(())
                })
                .await?;
        }
        for ((server, number), seen) in seen {
            course.say(&format!(
                "ending transaction {number} on {server}, left on volume {} by an earlier vos",
                seen.volume
            ));
            // It may have run out by itself; who needs the volume finds out.
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

    /// The transactions on some volumes. Servers that do not answer have none that could be ended.
    async fn transactions_of(
        &self,
        servers: &[Ipv4Addr],
        volumes: &[VolumeId],
    ) -> BTreeMap<(Ipv4Addr, i32), Seen> {
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
                    let seen = Seen {
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
