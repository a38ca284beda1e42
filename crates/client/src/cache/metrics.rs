//! What a cache has done, for Prometheus. Source: its text format, version 0.0.4.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Cache;
use crate::latency::LATENCY_BOUNDS;

/// What was answered from here, and what was not.
#[derive(Debug, Default)]
pub(crate) struct Asked {
    hits: AtomicU64,
    misses: AtomicU64,
}

/// Counts since the start.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Statuses, as `stat` and every look-up wants them.
    pub(crate) statuses: Asked,
    /// Names of directories.
    pub(crate) listings: Asked,
    /// Reads of files.
    pub(crate) reads: Asked,
    /// Bytes that servers sent, and took.
    pub(crate) fetched: AtomicU64,
    pub(crate) stored: AtomicU64,
    /// Those that came from and went to devices, beside file servers.
    pub(crate) fetched_directly: AtomicU64,
    pub(crate) stored_directly: AtomicU64,
    /// Promises that servers broke.
    pub(crate) breaks: AtomicU64,
    /// Small files that were fetched before anybody asked for them, and those of them that somebody asked for.
    pub(crate) fetched_ahead: AtomicU64,
    pub(crate) ahead_used: AtomicU64,
    /// Files that were lent to others, who read them by themselves.
    pub(crate) lent: AtomicU64,
}

impl Asked {
    pub(crate) fn hit(&self) {
        self.hits.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn missed(&self) {
        self.misses.fetch_add(1, Ordering::Relaxed);
    }
}

impl Cache {
    /// Its figures, in the text format of Prometheus.
    pub fn metrics(&self) -> String {
        let mut text = String::new();
        let counts = &self.counts;
        let kinds = [
            ("status", &counts.statuses),
            ("listing", &counts.listings),
            ("read", &counts.reads),
        ];
        for (name, about, hits) in [
            (
                "cellar_cache_hits_total",
                "Requests that were answered without a server.",
                true,
            ),
            (
                "cellar_cache_misses_total",
                "Requests for which a server was asked.",
                false,
            ),
        ] {
            head(&mut text, name, "counter", about);
            for (kind, asked) in kinds {
                let count = if hits { &asked.hits } else { &asked.misses };
                let value = count.load(Ordering::Relaxed);
                line(&mut text, format_args!("{name}{{what=\"{kind}\"}} {value}"));
            }
        }
        let unstored = self.unstored();
        let failed = unstored.iter().filter(|(_, why)| why.is_some()).count();
        let load = |value: &AtomicU64| value.load(Ordering::Relaxed);
        for (name, kind, about, value) in [
            (
                "cellar_fetched_bytes_total",
                "counter",
                "Bytes that file servers sent.",
                load(&counts.fetched),
            ),
            (
                "cellar_stored_bytes_total",
                "counter",
                "Bytes that file servers took.",
                load(&counts.stored),
            ),
            (
                "cellar_fetched_directly_bytes_total",
                "counter",
                "Bytes that object storage devices sent.",
                load(&counts.fetched_directly),
            ),
            (
                "cellar_stored_directly_bytes_total",
                "counter",
                "Bytes that object storage devices took.",
                load(&counts.stored_directly),
            ),
            (
                "cellar_prefetched_files_total",
                "counter",
                "Small files that were fetched before they were asked for.",
                load(&counts.fetched_ahead),
            ),
            (
                "cellar_prefetched_files_used_total",
                "counter",
                "Those of them that were read then.",
                load(&counts.ahead_used),
            ),
            (
                "cellar_passthrough_files_total",
                "counter",
                "Files of the cache directory that the kernel was given to read by itself.",
                load(&counts.lent),
            ),
            (
                "cellar_passthrough_bytes",
                "gauge",
                "Bytes of those that it has.",
                load(&self.space.lent),
            ),
            (
                "cellar_callback_breaks_total",
                "counter",
                "Promises that file servers broke.",
                load(&counts.breaks),
            ),
            (
                "cellar_cache_bytes",
                "gauge",
                "Bytes in the cache.",
                load(&self.space.used),
            ),
            (
                "cellar_cache_limit_bytes",
                "gauge",
                "Bytes that it may have.",
                self.size(),
            ),
            (
                "cellar_cache_dirty_bytes",
                "gauge",
                "Bytes that no server has.",
                load(&self.space.dirty),
            ),
            (
                "cellar_cache_dirty_files",
                "gauge",
                "Files that they are of.",
                unstored.len() as u64,
            ),
            (
                "cellar_cache_failed_files",
                "gauge",
                "Those that a server did not take.",
                failed as u64,
            ),
            (
                "cellar_cache_vnodes",
                "gauge",
                "Vnodes that are remembered.",
                self.vnodes.lock().len() as u64,
            ),
        ] {
            head(&mut text, name, kind, about);
            line(&mut text, format_args!("{name} {value}"));
        }
        self.latencies(&mut text);
        text
    }

    fn latencies(&self, text: &mut String) {
        let servers = self.users.latencies();
        let name = "cellar_rpc_seconds";
        head(
            text,
            name,
            "histogram",
            "How long file servers and location servers took to answer.",
        );
        for (server, latency) in servers {
            let mut count = 0;
            let bounds = LATENCY_BOUNDS
                .iter()
                .map(f64::to_string)
                .chain(["+Inf".to_owned()]);
            for (bound, more) in bounds.zip(latency.counts) {
                count += more;
                line(
                    text,
                    format_args!("{name}_bucket{{server=\"{server}\",le=\"{bound}\"}} {count}"),
                );
            }
            line(
                text,
                format_args!("{name}_sum{{server=\"{server}\"}} {}", latency.seconds),
            );
            line(
                text,
                format_args!("{name}_count{{server=\"{server}\"}} {count}"),
            );
        }
    }
}

fn head(text: &mut String, name: &str, kind: &str, about: &str) {
    line(text, format_args!("# HELP {name} {about}"));
    line(text, format_args!("# TYPE {name} {kind}"));
}

fn line(text: &mut String, what: std::fmt::Arguments<'_>) {
    // A string takes everything.
    let _never = writeln!(text, "{what}");
}
