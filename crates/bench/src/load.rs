//! Runs one operation from many clients for a time and collects the results.
//!
//! Every worker calls in a closed loop (optionally with a pause between calls). A shared word
//! announces three phases: warm-up (not counted), measurement, stop. A call counts if it both began
//! and ended within the measurement.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use cellar_rpc::CallError;

use crate::client::Client;
use crate::cpu::{self, Reading};
use crate::latency::Latencies;

/// The work of one thread of one client.
pub(crate) trait Work: Send + 'static {
    /// Makes one call.
    fn step(&mut self) -> impl Future<Output = Result<(), CallError>>;
}

/// The processes whose accounts are read.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Watched<'a> {
    pub(crate) servers: &'a [u32],
    /// Members of the store under the servers.
    pub(crate) store: &'a [u32],
}

/// Shape of a load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) clients: usize,
    pub(crate) threads: usize,
    pub(crate) warm_up: Duration,
    pub(crate) measure: Duration,
    pub(crate) pause: Duration,
    /// Concurrent calls of one additional client without pauses; 0: no such client.
    pub(crate) flood: usize,
}

/// Measurements of one client.
pub(crate) struct ClientFigures {
    pub(crate) latencies: Latencies,
    pub(crate) errors: u64,
    pub(crate) first_error: Option<CallError>,
    pub(crate) flooding: bool,
}

/// Measurements of one run of one operation.
pub(crate) struct Figures {
    pub(crate) elapsed: Duration,
    pub(crate) clients: Vec<ClientFigures>,
    pub(crate) server_cpu: Option<Duration>,
    pub(crate) server_resident: Option<u64>,
    pub(crate) store_cpu: Option<Duration>,
    pub(crate) store_resident: Option<u64>,
}

const WARM_UP: u8 = 0;
const MEASURE: u8 = 1;
const STOP: u8 = 2;

/// Runs the load from `clients` (the last one floods if `shape.flood` is not 0). `make` makes the
/// work of each thread, with a number that counts over all clients.
///
/// # Errors
/// The accounts of a watched process cannot be read.
pub(crate) fn run<W: Work>(
    clients: &[Client],
    shape: &Shape,
    watched: Watched<'_>,
    mut make: impl FnMut(&Client, usize) -> W,
) -> std::io::Result<Figures> {
    let phase = Arc::new(AtomicU8::new(WARM_UP));
    let workers = clients.len() * shape.threads.max(shape.flood);
    let (sender, receiver) = mpsc::sync_channel(workers);
    let mut number = 0;
    for (index, client) in clients.iter().enumerate() {
        let flooding = index >= shape.clients;
        let threads = if flooding { shape.flood } else { shape.threads };
        for _ in 0..threads {
            let worker = make(client, number);
            number += 1;
            let (phase, sender) = (phase.clone(), sender.clone());
            let pause = if flooding {
                Duration::ZERO
            } else {
                shape.pause
            };
            client.spawn(move || async move {
                let figures = work(worker, &phase, pause, flooding).await;
                let _ = sender.send((index, figures));
            });
        }
    }
    drop(sender);
    std::thread::sleep(shape.warm_up);
    let reading = |pids: &[u32]| match pids {
        [] => Ok(None),
        pids => Reading::take(pids).map(Some),
    };
    let before = (reading(watched.servers)?, reading(watched.store)?);
    let start = Instant::now();
    phase.store(MEASURE, Ordering::Release);
    std::thread::sleep(shape.measure);
    phase.store(STOP, Ordering::Release);
    let elapsed = start.elapsed();
    let spent = |pids, before: Option<Reading>| {
        Ok::<_, std::io::Error>(match (before, reading(pids)?) {
            (Some(before), Some(now)) => Some(now.since(&before)),
            _ => None,
        })
    };
    let server_cpu = spent(watched.servers, before.0)?;
    let store_cpu = spent(watched.store, before.1)?;
    let resident = |pids: &[u32]| match pids {
        [] => Ok(None),
        pids => cpu::resident_bytes(pids).map(Some),
    };
    let server_resident = resident(watched.servers)?;
    let store_resident = resident(watched.store)?;
    let mut merged: Vec<Option<ClientFigures>> = clients.iter().map(|_| None).collect();
    for (index, figures) in receiver {
        match &mut merged[index] {
            Some(existing) => existing.add(figures),
            slot => *slot = Some(figures),
        }
    }
    let clients = merged.into_iter().flatten().collect();
    Ok(Figures {
        elapsed,
        clients,
        server_cpu,
        server_resident,
        store_cpu,
        store_resident,
    })
}

async fn work(
    mut worker: impl Work,
    phase: &AtomicU8,
    pause: Duration,
    flooding: bool,
) -> ClientFigures {
    let mut figures = ClientFigures {
        latencies: Latencies::new(),
        errors: 0,
        first_error: None,
        flooding,
    };
    loop {
        let counted = match phase.load(Ordering::Acquire) {
            STOP => break,
            phase => phase == MEASURE,
        };
        let start = Instant::now();
        match worker.step().await {
            Ok(()) if counted && phase.load(Ordering::Acquire) == MEASURE => {
                figures.latencies.record(start.elapsed());
            }
            Ok(()) => {}
            Err(error) => {
                figures.errors += 1;
                figures.first_error.get_or_insert(error);
                if figures.errors > ERRORS_MAX && figures.latencies.count() == 0 {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
    }
    figures
}

impl ClientFigures {
    fn add(&mut self, other: Self) {
        self.latencies.add(&other.latencies);
        self.errors += other.errors;
        if self.first_error.is_none() {
            self.first_error = other.first_error;
        }
    }
}

/// A worker that has only failed gives up after this many errors.
const ERRORS_MAX: u64 = 50;
