//! Jobs of file servers, transactions of volume servers, and changes of jobs.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use cellar_admin::jobs::{Change, Details, Job, Jobs, Selection};
use cellar_admin::osd::RepairView;
use cellar_admin::recalls::Recall;
use cellar_wire::ids::ViceId;
use futures_util::future::{join_all, join4};

use super::{Answer, OpenTransaction, Site, within};

/// Jobs of one server on the page.
pub(crate) const JOBS_MAX: usize = 200;

/// The users of jobs whose names are looked up for the page.
const USERS_MAX: usize = 1000;

/// The work of the file servers.
pub(crate) struct Work {
    pub(crate) servers: Vec<ServerWork>,
    /// The names of users by the numbers that jobs have. A name that could not be had is missing.
    users: HashMap<String, String>,
}

impl Work {
    /// The name of the user of a job, or the number.
    pub(crate) fn user<'a>(&'a self, user: &'a str) -> &'a str {
        self.users.get(user).map_or(user, String::as_str)
    }
}

/// The work of one file server.
pub(crate) struct ServerWork {
    pub(crate) server: IpAddr,
    pub(crate) jobs: Answer<Vec<Job>>,
    /// The recalls of wiped files that wait or run; empty if the server does not list them.
    pub(crate) recalls: Vec<Recall>,
    /// Operations on volumes: moves, releases, dumps.
    pub(crate) transactions: Answer<Vec<OpenTransaction>>,
    /// Its repair queue; none for a server without object storage, or that does not answer.
    pub(crate) repairs: Option<RepairView>,
}

impl Site {
    pub(super) fn jobs(&self) -> Jobs<'_> {
        Jobs::new(&self.client, &self.cell)
    }

    /// Ends the drain of a device, which is used again.
    pub(crate) async fn stop_drain(&self, device: u32) -> Answer<()> {
        let (osds, number) = (self.osds(), device.to_string());
        let stop = osds.drain(&number, false);
        let stopped = self.within("the OSD database", stop).await;
        self.status.clear();
        self.works.clear();
        stopped.map(drop)
    }

    /// The work of all file servers. `ended`: also jobs that have ended.
    pub(crate) async fn work(&self, ended: bool) -> Arc<Answer<Work>> {
        let ask = async {
            let jobs = self.jobs();
            let servers = self.within("the VLDB", jobs.servers()).await?;
            let selection = Selection {
                ended,
                ..Selection::default()
            };
            let work = servers.into_iter().map(async |server| {
                let (limit, osds) = (self.limits.answer, self.osds());
                let what = format!("file server {server}");
                let (jobs, recalls, transactions, repairs) = join4(
                    within(limit, &what, jobs.first(server, &selection, JOBS_MAX)),
                    within(limit, &what, jobs.recalls(server)),
                    self.open_transactions(server),
                    within(limit, &what, osds.repairs_of(server)),
                )
                .await;
                ServerWork {
                    server,
                    jobs,
                    recalls: recalls.unwrap_or_default(),
                    transactions,
                    repairs: repairs.ok().flatten(),
                }
            });
            let servers = join_all(work).await;
            let users = self.users_of(&servers).await;
            Ok(Work { servers, users })
        };
        self.works.get(ended, ask).await
    }

    /// The names of the users of jobs.
    async fn users_of(&self, servers: &[ServerWork]) -> HashMap<String, String> {
        let jobs = servers
            .iter()
            .flat_map(|server| server.jobs.iter().flatten());
        let numbers: BTreeSet<&str> = jobs.map(|job| job.user.as_str()).take(USERS_MAX).collect();
        let (numbers, ids): (Vec<_>, Vec<_>) = numbers
            .into_iter()
            .filter_map(|number| Some((number.to_owned(), ViceId(number.parse().ok()?))))
            .unzip();
        let names = self.protection();
        let names = within(self.limits.answer, "names of users", names.names_of(&ids)).await;
        numbers.into_iter().zip(names.unwrap_or_default()).collect()
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
