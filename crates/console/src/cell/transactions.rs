//! Transactions of volume servers: operations that any client commands, also another one than this
//! console.

use std::net::IpAddr;

use cellar_admin::vos::{Transaction, Transfer, Volumes};
use cellar_wire::ids::{AfsTime, VolumeId};
use futures_util::stream::{self, StreamExt as _};

use super::{Answer, Site, within};

/// The most transactions of a server for which the page has the name and size of the volume.
const NAMED_MAX: usize = 32;
/// Questions about volumes at one time.
const QUESTIONS_MAX: usize = 8;

/// A transaction, with the known facts about its volume.
pub(crate) struct OpenTransaction {
    pub(crate) transaction: Transaction,
    /// The name of the volume; empty if the VLDB does not have it.
    pub(crate) name: String,
    /// The read-write volume of its family; the volume itself if the VLDB does not have it.
    pub(crate) family: VolumeId,
    /// The bytes of the read-write volume, if data are transferred and its server tells its size.
    pub(crate) whole: Option<u64>,
}

impl OpenTransaction {
    fn unnamed(transaction: Transaction) -> Self {
        Self {
            name: String::new(),
            family: transaction.volume,
            whole: None,
            transaction,
        }
    }

    /// The bytes that were transferred, in the direction in which more were.
    pub(crate) fn moved(&self) -> Option<u64> {
        let Transfer { received, sent, .. } = self.transaction.transfer?;
        Some(received.max(sent))
    }
}

impl Site {
    /// The transactions of a volume server.
    pub(super) async fn open_transactions(&self, server: IpAddr) -> Answer<Vec<OpenTransaction>> {
        let volumes = Volumes::new(&self.client, &self.cell);
        let what = format!("file server {server}");
        let listed = within(self.limits.answer, &what, volumes.transactions(server)).await?;
        let open =
            stream::iter(listed.into_iter().enumerate()).map(async |(place, transaction)| {
                let open = OpenTransaction::unnamed(transaction);
                match place < NAMED_MAX {
                    true => self.named(open).await,
                    false => open,
                }
            });
        Ok(open.buffered(QUESTIONS_MAX).collect().await)
    }

    /// Adds the facts of the VLDB. A volume server tells nothing about a volume in a transaction.
    async fn named(&self, mut open: OpenTransaction) -> OpenTransaction {
        let volumes = Volumes::new(&self.client, &self.cell);
        let volume = open.transaction.volume;
        let number = volume.0.to_string();
        let ask = within(self.limits.answer, "the VLDB", volumes.entry(&number));
        // A temporary clone has no entry.
        let Ok(entry) = ask.await else {
            return open;
        };
        open.name = match volume {
            id if id == entry.read_only => format!("{}.readonly", entry.name),
            id if id == entry.backup => format!("{}.backup", entry.name),
            _ => entry.name.clone(),
        };
        open.family = entry.read_write;
        if open.moved().is_some()
            && let Some(site) = entry.read_write_site()
        {
            let ask = volumes.volume_on(site.server, site.partition, entry.read_write, false);
            let info = within(self.limits.answer, "volume", ask).await;
            let bytes = info.map_or(0, |info| u64::from(info.size_kib) * 1024);
            open.whole = Some(bytes).filter(|bytes| *bytes > 0);
        }
        open
    }

    /// Ends a transaction that the page showed. The server then refuses the next call of the client
    /// that opened it.
    pub(crate) async fn end_transaction(
        &self,
        server: IpAddr,
        number: i32,
        created: AfsTime,
    ) -> Answer<()> {
        let volumes = Volumes::new(&self.client, &self.cell);
        let servers = self.within("the VLDB", self.jobs().servers()).await?;
        if !servers.contains(&server) {
            return Err(format!("{server} is no file server of this cell."));
        }
        let what = format!("file server {server}");
        let listed = self.within(&what, volumes.transactions(server)).await?;
        // After a restart, a server gives the same numbers to other transactions.
        let is_open = |one: &Transaction| one.id == number && one.created == created;
        if !listed.iter().any(is_open) {
            return Err(format!(
                "Transaction {number} of {server} has ended already."
            ));
        }
        let ended = self.within(&what, volumes.end_transaction(server, number));
        let ended = ended.await;
        self.works.clear();
        self.volume_views.clear();
        ended
    }
}
