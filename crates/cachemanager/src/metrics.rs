//! The counts of a cache, as metrics for Prometheus.

use std::fmt::{self, Debug, Formatter};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet, prometheus_text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use crate::Cache;
use cellar_client::latency::LATENCY_BOUNDS;

/// Requests that the cache answered alone, and requests that needed a server.
#[derive(Debug, Default)]
pub(crate) struct HitCounter {
    hits: AtomicU64,
    misses: AtomicU64,
}

/// Counts since the start.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Requests for statuses, by `stat` and every lookup.
    pub(crate) statuses: HitCounter,
    /// Requests for the names in a directory.
    pub(crate) listings: HitCounter,
    /// Reads of files.
    pub(crate) reads: HitCounter,
    /// Bytes that servers sent, and bytes that they stored.
    pub(crate) fetched: AtomicU64,
    pub(crate) stored: AtomicU64,
    /// The same for object storage devices.
    pub(crate) fetched_directly: AtomicU64,
    pub(crate) stored_directly: AtomicU64,
    /// Promises that servers broke.
    pub(crate) breaks: AtomicU64,
    /// Small files that were fetched ahead, and those of them that a program then read.
    pub(crate) fetched_ahead: AtomicU64,
    pub(crate) ahead_used: AtomicU64,
    /// Files that were lent to the kernel, which reads them by itself.
    pub(crate) lent: AtomicU64,
}

impl HitCounter {
    pub(crate) fn hit(&self) {
        self.hits.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn missed(&self) {
        self.misses.fetch_add(1, Ordering::Relaxed);
    }
}

/// The metrics of a cache, read at each scrape. There are none after the end of the cache.
struct Figures(Weak<Cache>);

impl Debug for Figures {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("Figures")
    }
}

impl Collector for Figures {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        match self.0.upgrade() {
            Some(cache) => cache.encode(encoder),
            None => Ok(()),
        }
    }
}

impl Cache {
    /// Adds the metrics of the cache to `registry`, for the life of the cache.
    pub fn register(self: &Arc<Self>, registry: &mut Registry) {
        registry.register_collector(Box::new(Figures(Arc::downgrade(self))));
    }

    /// Returns the metrics of the cache, in the text format of Prometheus.
    pub fn metrics(self: &Arc<Self>) -> String {
        let (mut registry, mut text) = (Registry::default(), String::new());
        self.register(&mut registry);
        // A write to a string cannot fail.
        let _never = prometheus_text::encode(&mut text, &registry);
        text
    }

    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let counts = &self.env.counts;
        let load = |value: &AtomicU64| value.load(Ordering::Relaxed);
        let kinds = [
            ("status", &counts.statuses),
            ("listing", &counts.listings),
            ("read", &counts.reads),
        ];
        for (name, about, hits) in [
            (
                "cellar_cache_hits",
                "Requests that were answered without a server.",
                true,
            ),
            (
                "cellar_cache_misses",
                "Requests for which a server was asked.",
                false,
            ),
        ] {
            let mut family = encoder.encode_descriptor(name, about, None, MetricType::Counter)?;
            for (kind, asked) in kinds {
                let count = load(if hits { &asked.hits } else { &asked.misses });
                let label = [("what", kind)];
                ConstCounter::new(count).encode(family.encode_family(&label)?)?;
            }
        }
        // The encoder appends "_total" to the name of a counter.
        for (name, about, value) in [
            (
                "cellar_fetched_bytes",
                "Bytes that file servers sent.",
                load(&counts.fetched),
            ),
            (
                "cellar_stored_bytes",
                "Bytes that file servers took.",
                load(&counts.stored),
            ),
            (
                "cellar_fetched_directly_bytes",
                "Bytes that object storage devices sent.",
                load(&counts.fetched_directly),
            ),
            (
                "cellar_stored_directly_bytes",
                "Bytes that object storage devices took.",
                load(&counts.stored_directly),
            ),
            (
                "cellar_prefetched_files",
                "Small files that were fetched before they were asked for.",
                load(&counts.fetched_ahead),
            ),
            (
                "cellar_prefetched_files_used",
                "Prefetched files that were read then.",
                load(&counts.ahead_used),
            ),
            (
                "cellar_passthrough_files",
                "Files of the cache directory that the kernel was given to read by itself.",
                load(&counts.lent),
            ),
            (
                "cellar_callback_breaks",
                "Promises that file servers broke.",
                load(&counts.breaks),
            ),
        ] {
            let encoder = encoder.encode_descriptor(name, about, None, MetricType::Counter)?;
            ConstCounter::new(value).encode(encoder)?;
        }
        let unstored = self.write_back.unstored();
        let failed = unstored.iter().filter(|(_, why)| why.is_some()).count();
        for (name, about, value) in [
            (
                "cellar_passthrough_bytes",
                "Bytes of files that the kernel reads by itself.",
                load(&self.env.space.lent),
            ),
            (
                "cellar_cache_bytes",
                "Bytes in the cache.",
                load(&self.env.space.used),
            ),
            (
                "cellar_cache_limit_bytes",
                "Bytes that the cache may have.",
                self.env.size(),
            ),
            (
                "cellar_cache_dirty_bytes",
                "Bytes that no server has.",
                load(&self.env.space.dirty),
            ),
            (
                "cellar_cache_dirty_files",
                "Files with bytes that no server has.",
                unstored.len() as u64,
            ),
            (
                "cellar_cache_failed_files",
                "Files that a server did not take.",
                failed as u64,
            ),
            (
                "cellar_cache_vnodes",
                "Vnodes that are remembered.",
                self.vnodes.count() as u64,
            ),
        ] {
            let encoder = encoder.encode_descriptor(name, about, None, MetricType::Gauge)?;
            ConstGauge::new(value).encode(encoder)?;
        }
        let mut family = encoder.encode_descriptor(
            "cellar_rpc_seconds",
            "How long file servers and location servers took to answer.",
            None,
            MetricType::Histogram,
        )?;
        let bounds = LATENCY_BOUNDS.into_iter().chain([f64::INFINITY]);
        for (server, latency) in self.env.users.latencies() {
            let buckets: Vec<_> = bounds.clone().zip(latency.counts).collect();
            let count = latency.counts.iter().sum();
            let label = [("server", server.to_string())];
            let mut encoder = family.encode_family(&label)?;
            encoder.encode_histogram::<NoLabelSet>(latency.seconds, count, &buckets, None)?;
        }
        Ok(())
    }
}
