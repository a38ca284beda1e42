//! The traversal of all volumes for the tables of sizes and places, as `cellar vos traverse` makes
//! it.
//!
//! An administrator starts it; one runs at a time, in the background. The result stays in memory
//! until the next one.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cellar_admin::date;
use cellar_admin::osd::Device;
use cellar_admin::vos::job::{JobContext, Stop, Unwatched};
use cellar_admin::vos::{Scope, Traversed, Volumes};
use cellar_wire::ids::AfsTime;
use parking_lot::Mutex;

use super::{Answer, Site, sentence};

/// A traversal under way.
#[derive(Default)]
pub(crate) struct Traversal {
    stop: Stop,
    /// Volumes to check; 0 before the VLDB has listed them.
    pub(crate) volumes: AtomicU64,
    /// Checked volumes.
    pub(crate) checked: AtomicU64,
}

/// The result of a traversal.
pub(crate) struct Usage {
    pub(crate) found: Traversed,
    /// The devices by number, for their names.
    pub(crate) devices: HashMap<u32, Device>,
    /// Its end.
    pub(crate) at: AfsTime,
}

/// The traversals of a console.
#[derive(Clone, Default)]
pub(crate) struct UsageState {
    pub(crate) running: Option<Arc<Traversal>>,
    /// The last result. A traversal that fails leaves it as it is.
    pub(crate) last: Option<Arc<Usage>>,
    /// The reason why the last traversal has no result.
    pub(crate) failure: Option<String>,
}

/// The state of the traversals.
#[derive(Default)]
pub(crate) struct Traversals(Mutex<UsageState>);

impl Site {
    /// The running traversal and the last result.
    pub(crate) fn usage(&self) -> UsageState {
        self.traversals.0.lock().clone()
    }

    /// Starts a traversal, if none runs.
    pub(crate) fn start_traversal(self: &Arc<Self>) {
        let traversal = Arc::new(Traversal::default());
        {
            let mut state = self.traversals.0.lock();
            if state.running.is_some() {
                return;
            }
            state.running = Some(traversal.clone());
        }
        let site = self.clone();
        tokio::spawn(async move {
            let found = site.traverse(&traversal).await;
            let devices = match site.osds().list().await {
                Ok(devices) => devices.into_iter().map(|d| (d.id, d)).collect(),
                // Without names, the tables have the numbers.
                Err(_) => HashMap::new(),
            };
            let at = date::parse("now").unwrap_or_default();
            let mut state = site.traversals.0.lock();
            state.running = None;
            match found {
                Ok(found) => {
                    let usage = Usage { found, devices, at };
                    (state.last, state.failure) = (Some(Arc::new(usage)), None);
                }
                Err(sentence) => state.failure = Some(sentence),
            }
        });
    }

    /// Stops the running traversal.
    pub(crate) fn stop_traversal(&self) {
        if let Some(running) = &self.traversals.0.lock().running {
            running.stop.ask();
        }
    }

    async fn traverse(&self, traversal: &Traversal) -> Answer<Traversed> {
        let volumes = Volumes::new(&self.client, &self.cell);
        let listed = traversal.stop.unless(volumes.traversable(&Scope::Cell));
        let listed = listed.await.ok_or("it was stopped")?;
        let listed = listed.map_err(|error| sentence(&error))?;
        let all = listed.len() as u64;
        traversal.volumes.store(all, Ordering::Relaxed);
        let context = JobContext::new(&Unwatched, &traversal.stop);
        let mut begun = 0;
        let found = volumes.traverse(&listed, context, |_| {
            traversal.checked.store(begun, Ordering::Relaxed);
            begun += 1;
        });
        match found.await {
            Err(cellar_admin::Error::Interrupted) => Err("it was stopped".to_owned()),
            found => found.map_err(|error| sentence(&error)),
        }
    }
}
