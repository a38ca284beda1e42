//! The state of the whole cell, as `cellar status` has it.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use cellar_admin::HostNames;
use cellar_admin::date;
use cellar_admin::status::{CellStatus, Limits};
use cellar_wire::ids::AfsTime;

use super::Site;

/// The longest time for the names of all servers.
const NAMES_TIME: Duration = Duration::from_secs(2);

/// The state of the cell at a time.
pub(crate) struct Overview {
    pub(crate) status: CellStatus,
    /// The time of the answer.
    pub(crate) at: AfsTime,
}

impl Site {
    /// The state of the cell.
    pub(crate) async fn overview(&self) -> Arc<Overview> {
        self.status.get(true, self.ask_status(true)).await
    }

    /// The state of the servers, partitions and devices. The volumes are not examined, which would
    /// take long in a large cell.
    pub(crate) async fn servers(&self) -> Arc<Overview> {
        self.status.get(false, self.ask_status(false)).await
    }

    async fn ask_status(&self, volumes: bool) -> Overview {
        let limits = Limits {
            answer: self.limits.answer,
            listing: self.limits.listing,
            volumes,
        };
        let status = CellStatus::collect(&self.client, &self.cell, limits).await;
        let databases = status.database_servers.iter().map(|server| server.address);
        let files = status
            .file_servers
            .iter()
            .flat_map(|server| server.addresses.iter().copied());
        self.learn(databases.chain(files).collect()).await;
        Overview {
            status,
            at: date::parse("now").unwrap_or_default(),
        }
    }

    /// Looks up the names of machines. Names that come too late are left out.
    async fn learn(&self, addresses: Vec<IpAddr>) {
        if !self.limits.resolve {
            return;
        }
        let known = self.hosts();
        let is_known = |address: &IpAddr| known.name(*address) != address.to_string();
        if addresses.iter().all(is_known) {
            return;
        }
        let mut hosts = HostNames::new(true);
        let _late = tokio::time::timeout(NAMES_TIME, hosts.learn(addresses)).await;
        *self.hosts.write() = Arc::new(hosts);
    }
}
