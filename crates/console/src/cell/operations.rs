//! The tasks of the console's operations: the jobs of `cellar-admin`, with their progress.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use cellar_admin::Error;
use cellar_admin::date;
use cellar_admin::vos::job::JobContext;
use cellar_admin::vos::{
    Entry, Location, MoveOptions, Moved, ReleaseOptions, Released, Volumes, entry_flags, site_flags,
};
use cellar_wire::ids::VolumeId;

use super::{Answer, Site, sentence};
use crate::operations::{Begun, Ending, Kind, OperationView, Order, Progress};

/// The interval at which a server is asked for the bytes that it has sent.
const LOOK: Duration = Duration::from_secs(1);

/// A change of a volume that an administrator wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    Move(Location),
    Release { resume: bool },
    Backup,
}

/// The outcome of a task: its ending, and a sentence about it.
type Outcome = (Ending, String);

impl Site {
    /// The operations of this console, the newest first.
    pub(crate) fn operations(&self) -> Vec<OperationView> {
        self.operations.all()
    }

    /// An operation of this console.
    pub(crate) fn operation(&self, id: u64) -> Option<OperationView> {
        self.operations.get(id)
    }

    /// The running operation of a read-write volume.
    pub(crate) fn operation_of(&self, volume: VolumeId) -> Option<OperationView> {
        self.operations.of_volume(volume)
    }

    /// Cancels an operation.
    pub(crate) fn cancel_operation(&self, id: u64) -> Answer<()> {
        self.operations.cancel(id)
    }

    /// Cancels all operations of this console and waits until they have cleaned up, at most for
    /// `limit`. Returns a sentence for each one that still runs then.
    pub async fn close_operations(&self, limit: Duration) -> Vec<String> {
        let left = self.operations.close(limit).await;
        let told = left.into_iter().map(|view| {
            let Order { kind, name, .. } = view.order;
            let how = match kind {
                Kind::Move { from, to } => format!(
                    "'cellar vos move {name} {} {} {} {}' continues it",
                    from.server, from.partition, to.server, to.partition
                ),
                Kind::Release { .. } => {
                    format!("'cellar vos release {name} -resume' continues it")
                }
                Kind::Backup => format!("'cellar vos backup {name}' repeats it"),
            };
            format!(
                "operation {} ({} of volume {name}) was left unfinished; 'cellar vos examine {name}' shows its state, and {how}",
                view.id,
                kind.word()
            )
        });
        told.collect()
    }

    /// Starts an operation on a volume. Returns its number.
    pub(crate) async fn start_operation(
        self: &Arc<Self>,
        volume: &str,
        wish: Wish,
        session: u64,
    ) -> Answer<u64> {
        let volumes = Volumes::new(&self.client, &self.cell);
        let entry = self.within("the VLDB", volumes.entry(volume)).await?;
        let home = home(&entry)?;
        let kind = match wish {
            Wish::Move(to) if to == home => {
                return Err(format!("Volume {} is on {to} already.", entry.name));
            }
            Wish::Move(to) => Kind::Move { from: home, to },
            Wish::Release { resume } => Kind::Release { resume },
            Wish::Backup => Kind::Backup,
        };
        let order = Order {
            kind,
            name: entry.name.clone(),
            volume: entry.read_write,
            session,
            started: date::parse("now").unwrap_or_default(),
        };
        let begun = self.operations.begin(order)?;
        let (id, site) = (begun.id, self.clone());
        tracing::info!(
            session,
            operation = id,
            kind = kind.word(),
            volume = entry.name,
            "an operation begins"
        );
        tokio::spawn(async move {
            let worker = site.clone();
            let name = entry.name.clone();
            let task =
                tokio::spawn(async move { worker.run_operation(&entry, home, kind, &begun).await });
            let (ending, sentence) = task.await.unwrap_or_else(|fault| {
                (
                    Ending::Failed,
                    format!("A fault of the console ended it: {fault}."),
                )
            });
            tracing::info!(
                operation = id,
                volume = name,
                ?ending,
                sentence,
                "an operation ended"
            );
            site.volume_views.clear();
            site.volume_lists.clear();
            site.works.clear();
            let now = date::parse("now").unwrap_or_default();
            site.operations.ended(id, ending, sentence, now);
        });
        Ok(id)
    }

    /// Does the work of an operation.
    async fn run_operation(
        &self,
        entry: &Entry,
        home: Location,
        kind: Kind,
        begun: &Begun,
    ) -> Outcome {
        let volumes = Volumes::new(&self.client, &self.cell);
        let context = JobContext::new(&*begun.progress, &begun.stop);
        let name = &entry.name;
        let job = async {
            match kind {
                Kind::Move { from, to } => volumes
                    .move_volume(name, from, to, MoveOptions::default(), context)
                    .await
                    .map(|moved| (Ending::Well, self.moved(&moved))),
                Kind::Release { resume } => {
                    let options = ReleaseOptions {
                        full: false,
                        resume,
                    };
                    let released = volumes.release(name, options, context).await;
                    released.map(|released| self.released(&released, begun.stop.is_asked()))
                }
                Kind::Backup => volumes.backup_in(name, context).await.map(|backup| {
                    (
                        Ending::Well,
                        format!("The backup volume {} is made.", backup.0),
                    )
                }),
            }
        };
        let done = tokio::select! {
            done = job => done,
            () = look(&volumes, entry, home, kind, &begun.progress) => Err(Error::Interrupted),
        };
        match done {
            Ok(outcome) => outcome,
            Err(Error::Interrupted) => (Ending::Stopped, self.state_left(name).await),
            Err(error) => (Ending::Failed, sentence(&error)),
        }
    }

    fn moved(&self, moved: &Moved) -> String {
        let hosts = self.hosts();
        let to = format!(
            "{} {}",
            hosts.name(IpAddr::V4(moved.to.server)),
            moved.to.partition
        );
        match moved.backup_removed {
            Some(backup) => format!(
                "The volume is on {to}. Its backup volume {} at the old place was removed; a backup makes a new one.",
                backup.0
            ),
            None => format!("The volume is on {to}."),
        }
    }

    fn released(&self, released: &Released, is_stopped: bool) -> Outcome {
        let hosts = self.hosts();
        let mut missed = String::new();
        for site in &released.sites {
            if let Some(error) = &site.error {
                let name = hosts.name(IpAddr::V4(site.at.server));
                missed.push_str(&format!(" {name} {}: {error}.", site.at.partition));
            }
        }
        if missed.is_empty() {
            return match released.sites.len() {
                0 if released.resumed => (
                    Ending::Well,
                    "The volume has no unfinished release.".to_owned(),
                ),
                _ => (
                    Ending::Well,
                    "All read-only sites have the release.".to_owned(),
                ),
            };
        }
        let mut sentence = format!("Some read-only sites do not have the release:{missed}");
        if released.unfinished {
            sentence.push_str(" A release that continues the unfinished one sends it to them.");
        }
        match is_stopped {
            true => (Ending::Stopped, sentence),
            false => (Ending::Failed, sentence),
        }
    }

    /// The place and the lock of a volume after its operation was cancelled.
    async fn state_left(&self, name: &str) -> String {
        let volumes = Volumes::new(&self.client, &self.cell);
        let entry = match self.within("the VLDB", volumes.entry(name)).await {
            Ok(entry) => entry,
            Err(sentence) => return format!("It stopped. {sentence}."),
        };
        let place = entry.read_write_site().map_or_else(
            || "nowhere".to_owned(),
            |site| format!("on {} {}", self.hosts().name(site.server), site.partition),
        );
        let lock = match entry.is_locked() {
            true => "locked by another operation",
            false => "not locked",
        };
        format!("It stopped. The volume is {place}, and its entry is {lock}.")
    }
}

/// The place of the read-write volume.
fn home(entry: &Entry) -> Answer<Location> {
    let has_volume = entry.flags & entry_flags::RW_EXISTS != 0;
    let site = entry.read_write_site().filter(|_| has_volume);
    let site = site.ok_or_else(|| format!("Volume {} has no read-write volume.", entry.name))?;
    Location::new(site.server, site.partition).map_err(|error| sentence(&error))
}

/// Asks the sending server for the progress, until the future is dropped.
async fn look(
    volumes: &Volumes<'_>,
    entry: &Entry,
    home: Location,
    kind: Kind,
    progress: &Progress,
) {
    let server = IpAddr::V4(home.server);
    let sent = match kind {
        Kind::Move { .. } => entry.read_write,
        Kind::Release { .. } => entry.read_only,
        // A clone sends nothing.
        Kind::Backup => return std::future::pending().await,
    };
    let info = volumes.volume_on(server, home.partition, entry.read_write, false);
    if let Ok(info) = info.await {
        progress.set_whole(u64::from(info.size_kib) * 1024);
    }
    loop {
        tokio::time::sleep(LOOK).await;
        if let Ok(Some(bytes)) = volumes.bytes_sent(server, sent).await {
            progress.sent(bytes);
        }
    }
}

/// Whether an entry has the marks of a release that did not reach all sites.
pub(crate) fn has_unfinished_release(entry: &Entry) -> bool {
    entry
        .sites
        .iter()
        .any(|site| site.flags & site_flags::NEW_RELEASE != 0)
}
