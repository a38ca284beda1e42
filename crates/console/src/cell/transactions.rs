//! Transactions of volume servers: operations that any client commands, also another one than this
//! console.

use std::net::IpAddr;

use cellar_admin::vos::{Transaction, Transfer, Volumes};
use cellar_wire::ids::{AfsTime, PartitionId, VolumeId};
use futures_util::stream::{self, StreamExt as _};

use super::{Answer, Site, within};

/// The most transactions of a server for which the page has the name and size of the volume.
const NAMED_MAX: usize = 32;
/// Questions about volumes at one time.
const QUESTIONS_MAX: usize = 8;

/// A transaction, with the known facts about its volume.
pub(crate) struct OpenTransaction {
    pub(crate) transaction: Transaction,
    /// The name of the volume; empty if the server does not tell it.
    pub(crate) name: String,
    /// The read-write volume of its family; the volume itself if the server does not tell it.
    pub(crate) family: VolumeId,
    /// The bytes of the whole volume, if data are transferred and its size is known.
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

    fn receives(&self) -> bool {
        let transfer = self.transaction.transfer;
        transfer.is_some_and(|transfer| transfer.received > transfer.sent)
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
                    true => self.named(server, open).await,
                    false => open,
                }
            });
        Ok(open.buffered(QUESTIONS_MAX).collect().await)
    }

    /// Adds the facts about the volume of a transaction.
    async fn named(&self, server: IpAddr, mut open: OpenTransaction) -> OpenTransaction {
        let volumes = Volumes::new(&self.client, &self.cell);
        let volume = open.transaction.volume;
        let Some(partition) = PartitionId::new(open.transaction.partition) else {
            return open;
        };
        let ask = volumes.volume_on(server, partition, volume, false);
        if let Ok(info) = within(self.limits.answer, "volume", ask).await {
            open.name = info.name;
            if info.parent.0 != 0 {
                open.family = info.parent;
            }
            open.whole = Some(u64::from(info.size_kib) * 1024);
        }
        if open.receives() {
            // The volume grows here. Its size is that of the read-write volume at its present place.
            open.whole = self.size_at_home(volume).await;
        }
        open.whole = open
            .whole
            .filter(|whole| *whole > 0 && open.moved().is_some());
        open
    }

    async fn size_at_home(&self, volume: VolumeId) -> Option<u64> {
        let volumes = Volumes::new(&self.client, &self.cell);
        let ask = async {
            let entry = volumes.entry(&volume.0.to_string()).await?;
            match entry.read_write_site() {
                Some(site) => {
                    let ask =
                        volumes.volume_on(site.server, site.partition, entry.read_write, false);
                    ask.await.map(Some)
                }
                None => Ok(None),
            }
        };
        let info = within(self.limits.answer, "volume", ask).await.ok()??;
        Some(u64::from(info.size_kib) * 1024)
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
