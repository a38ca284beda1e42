//! Jobs of file servers, transactions of volume servers, and changes of jobs.

use std::net::IpAddr;
use std::sync::Arc;

use cellar_admin::jobs::{Change, Details, Job, Jobs, Selection};
use cellar_admin::vos::{Transaction, Volumes};
use futures_util::future::{join, join_all};

use super::{Answer, Site, within};

/// Jobs of one server on the page.
pub(crate) const JOBS_MAX: usize = 200;

/// The work of one file server.
pub(crate) struct ServerWork {
    pub(crate) server: IpAddr,
    pub(crate) jobs: Answer<Vec<Job>>,
    /// Operations on volumes: moves, releases, dumps.
    pub(crate) transactions: Answer<Vec<Transaction>>,
}

impl Site {
    fn jobs(&self) -> Jobs<'_> {
        Jobs::new(&self.client, &self.cell)
    }

    /// The work of all file servers. `ended`: also jobs that have ended.
    pub(crate) async fn work(&self, ended: bool) -> Arc<Answer<Vec<ServerWork>>> {
        let ask = async {
            let jobs = self.jobs();
            let servers = self.within("the VLDB", jobs.servers()).await?;
            let selection = Selection {
                ended,
                ..Selection::default()
            };
            let work = servers.into_iter().map(async |server| {
                let volumes = Volumes::new(&self.client, &self.cell);
                let limit = self.limits.answer;
                let what = format!("file server {server}");
                let (jobs, transactions) = join(
                    within(limit, &what, jobs.first(server, &selection, JOBS_MAX)),
                    within(limit, &what, volumes.transactions(server)),
                )
                .await;
                ServerWork {
                    server,
                    jobs,
                    transactions,
                }
            });
            Ok(join_all(work).await)
        };
        self.works.get(ended, ask).await
    }

    /// A job with its files.
    pub(crate) async fn job(&self, server: IpAddr, id: u64) -> Answer<Details> {
        let what = format!("file server {server}");
        self.within(&what, self.jobs().show(server, id)).await
    }

    /// Changes a job.
    pub(crate) async fn change_job(&self, server: IpAddr, id: u64, change: Change) -> Answer<()> {
        let what = format!("file server {server}");
        let jobs = self.jobs();
        let changed = self.within(&what, jobs.change(server, id, change)).await;
        self.works.clear();
        changed
    }
}
