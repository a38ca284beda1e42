//! GetStatistics (146) and GetStatistics64 (65542): the figures that `scout` and `fsprobe` show.

use cellar_rpc::IncomingCall;
use cellar_wire::rxafs::{
    GetStatistics, GetStatistics64, GetStatistics64Reply, GetStatisticsReply, STATISTICS64_LEN,
    Statistics64, ViceDisk, ViceDisks, ViceStatistics,
};
use cellar_wire::serve::Handle;
use cellar_wire::{List, Opaque};

use super::FileService;
use super::common::run_apart;
use crate::abort_map::Refusal;
use crate::figures::Figures;
use crate::volumes::Volumes;

/// The number of partitions that fit into the old form.
const DISKS_MAX: usize = 10;

impl Handle<GetStatistics, IncomingCall> for FileService {
    async fn handle(
        &self,
        call: &IncomingCall,
        _: GetStatistics,
    ) -> Result<GetStatisticsReply, Refusal> {
        let services = &self.services;

        services.sessions.note_call(call);
        let disks = {
            let services = services.clone();
            run_apart(move || disks(&services.volumes)).await?
        };
        let figures = self.counters.figures();
        let sums = Sums::of(&figures);
        // Old counters are 32 bits and wrap.
        Ok(GetStatisticsReply {
            statistics: ViceStatistics {
                current_time: figures.now.as_secs() as u32,
                boot_time: figures.started.as_secs() as u32,
                start_time: figures.started.as_secs() as u32,
                current_connections: i32::try_from(figures.clients).unwrap_or(i32::MAX),
                total_vice_calls: sums.calls as u32,
                total_fetches: sums.fetches as u32,
                fetch_datas: figures.fetched.transfers as u32,
                fetched_bytes: figures.fetched.bytes as u32,
                fetch_data_rate: i32::try_from(sums.fetch_rate).unwrap_or(i32::MAX),
                total_stores: sums.stores as u32,
                store_datas: figures.stored.transfers as u32,
                stored_bytes: figures.stored.bytes as u32,
                store_data_rate: i32::try_from(sums.store_rate).unwrap_or(i32::MAX),
                workstations: i32::try_from(figures.hosts.hosts).unwrap_or(i32::MAX),
                active_workstations: i32::try_from(figures.hosts.active).unwrap_or(i32::MAX),
                disks: ViceDisks(List::from_iter_cut(disks)),
                ..ViceStatistics::default()
            },
        })
    }
}

impl Handle<GetStatistics64, IncomingCall> for FileService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: GetStatistics64,
    ) -> Result<GetStatistics64Reply, Refusal> {
        let services = &self.services;
        let GetStatistics64 { version } = arguments;
        services.sessions.note_call(call);
        if usize::try_from(version) != Ok(STATISTICS64_LEN) {
            return Err(Refusal::Invalid);
        }
        let figures = self.counters.figures();
        let sums = Sums::of(&figures);
        let (hosts, active) = (figures.hosts.hosts as u64, figures.hosts.active as u64);
        let words: [u64; STATISTICS64_LEN] = [
            figures.now.as_secs(),
            figures.started.as_secs(),
            figures.started.as_secs(),
            figures.clients as u64,
            sums.fetches,
            figures.fetched.transfers,
            figures.fetched.bytes,
            sums.fetch_rate,
            sums.stores,
            figures.stored.transfers,
            figures.stored.bytes,
            sums.store_rate,
            sums.calls,
            hosts,
            active,
            0,
        ];
        Ok(GetStatistics64Reply {
            statistics: Statistics64::from_iter_cut(words),
        })
    }
}

struct Sums {
    calls: u64,
    fetches: u64,
    stores: u64,
    /// Bytes a second while transfers ran.
    fetch_rate: u64,
    store_rate: u64,
}

impl Sums {
    fn of(figures: &Figures) -> Self {
        let calls = |names: &[&str]| names.iter().map(|name| figures.calls(name)).sum();
        let rate = |bytes: u64, micros: u64| {
            bytes
                .saturating_mul(1_000_000)
                .checked_div(micros)
                .unwrap_or(0)
        };
        let (fetched, stored) = (&figures.fetched, &figures.stored);
        Self {
            calls: figures.calls_in_all(),
            fetches: calls(&["FetchData", "FetchData64", "FetchACL", "FetchStatus"]),
            stores: calls(&[
                "StoreData",
                "StoreData64",
                "StoreACL",
                "OldStoreACL",
                "StoreStatus",
            ]),
            fetch_rate: rate(fetched.bytes, fetched.durations.sum),
            store_rate: rate(stored.bytes, stored.durations.sum),
        }
    }
}

fn disks(volumes: &Volumes) -> Result<Vec<ViceDisk>, Refusal> {
    let mut disks = Vec::new();
    for (id, partition) in volumes.partitions().into_iter().take(DISKS_MAX) {
        let usage = partition.usage()?;
        let blocks = |count: u64| i32::try_from(count).unwrap_or(i32::MAX);
        disks.push(ViceDisk {
            blocks_available: blocks(usage.free_blocks),
            total_blocks: blocks(usage.total_blocks),
            name: Opaque::new(id.to_string().into_bytes()).unwrap_or_default(),
        });
    }
    Ok(disks)
}
