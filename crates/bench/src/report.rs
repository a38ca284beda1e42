//! Output of the results: a table for people, JSON for scripts.

use std::time::Duration;

use serde_json::{Value, json};

use crate::latency::Latencies;
use crate::load::{Figures, Shape};

/// The kind of the measured calls.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    /// Name in tables.
    pub(crate) label: &'static str,
    /// Items in one call, for example files.
    pub(crate) items: u64,
    /// Bytes of file data in one call, if the rate in MB/s is of interest.
    pub(crate) bytes: Option<u64>,
    /// Whether the lines show the slowest client too.
    pub(crate) by_client: bool,
}

/// Summary of one run.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) rate: f64,
    pub(crate) megabytes_per_second: Option<f64>,
    pub(crate) cpu_per_item: Option<Duration>,
    pub(crate) cpu_per_megabyte: Option<Duration>,
    pub(crate) p50: Duration,
    pub(crate) p99: Duration,
    pub(crate) max: Duration,
    pub(crate) worst_client_p99: Duration,
    pub(crate) slowest_client_rate: f64,
    pub(crate) flood_rate: Option<f64>,
    pub(crate) errors: u64,
    pub(crate) first_error: Option<String>,
    pub(crate) server_resident: Option<u64>,
    pub(crate) store_cpu_per_item: Option<Duration>,
    pub(crate) store_resident: Option<u64>,
}

impl Row {
    pub(crate) fn new(kind: &Kind, figures: &Figures) -> Self {
        let seconds = figures.elapsed.as_secs_f64();
        let mut all = Latencies::new();
        let mut worst = Duration::ZERO;
        let mut slowest = f64::INFINITY;
        let mut flood = None;
        let mut everything = 0;
        for client in &figures.clients {
            let count = client.latencies.count();
            everything += count;
            if client.flooding {
                flood = Some(count as f64 / seconds);
                continue;
            }
            all.add(&client.latencies);
            worst = worst.max(client.latencies.quantile(0.99));
            slowest = slowest.min(count as f64 / seconds);
        }
        let items = all.count() * kind.items;
        let share = |cpu: Option<Duration>, count: u64| {
            let cpu = cpu?;
            (count > 0).then(|| cpu.div_f64(count as f64))
        };
        let each = |count| share(figures.server_cpu, count);
        let megabytes = |calls: u64| kind.bytes.map(|bytes| calls * bytes / 1_000_000);
        Self {
            rate: items as f64 / seconds,
            megabytes_per_second: kind
                .bytes
                .map(|bytes| all.count() as f64 * bytes as f64 / 1e6 / seconds),
            cpu_per_item: each(everything * kind.items),
            cpu_per_megabyte: megabytes(everything).and_then(each),
            p50: all.quantile(0.5),
            p99: all.quantile(0.99),
            max: all.max(),
            worst_client_p99: worst,
            slowest_client_rate: if slowest.is_finite() { slowest } else { 0.0 },
            flood_rate: flood,
            errors: figures.clients.iter().map(|client| client.errors).sum(),
            first_error: figures
                .clients
                .iter()
                .find_map(|client| client.first_error.as_ref())
                .map(ToString::to_string),
            server_resident: figures.server_resident,
            store_cpu_per_item: share(figures.store_cpu, everything * kind.items),
            store_resident: figures.store_resident,
        }
    }

    /// Returns the median of several runs, by rate; `None` if there are none.
    pub(crate) fn median(mut rows: Vec<Self>) -> Option<Self> {
        rows.sort_by(|a, b| a.rate.total_cmp(&b.rate));
        let middle = rows.len() / 2;
        (!rows.is_empty()).then(|| rows.swap_remove(middle))
    }

    /// One line for people.
    pub(crate) fn line(&self, kind: &Kind) -> String {
        let rate = match self.megabytes_per_second {
            Some(rate) => format!("{rate:>10.1} MB/s"),
            None => format!("{:>10.0} /s  ", self.rate),
        };
        let cpu = match (self.cpu_per_megabyte, self.cpu_per_item) {
            (Some(cpu), _) => format!("{:>8.2} ms/MB", cpu.as_secs_f64() * 1e3),
            (None, Some(cpu)) => format!("{:>8.1} us/op", cpu.as_secs_f64() * 1e6),
            (None, None) => format!("{:>8}      ", "-"),
        };
        let mut line = format!(
            "{:<30} {rate} {cpu}  p50 {}  p99 {}  max {}",
            kind.label,
            milliseconds(self.p50),
            milliseconds(self.p99),
            milliseconds(self.max),
        );
        if kind.by_client {
            line += &format!(
                "  worst client p99 {}, {:.0} /s",
                milliseconds(self.worst_client_p99),
                self.slowest_client_rate
            );
        }
        if let Some(rate) = self.flood_rate {
            line += &format!("  flooding client {rate:.0} /s");
        }
        if self.errors > 0 {
            let text = self.first_error.as_deref().unwrap_or_default();
            line += &format!("  {} ERRORS: {text}", self.errors);
        }
        line
    }

    /// For scripts.
    pub(crate) fn json(&self, kind: &Kind, shape: &Shape) -> Value {
        let micros = |time: Duration| time.as_secs_f64() * 1e6;
        json!({
            "operation": kind.label,
            "clients": shape.clients,
            "threads": shape.threads,
            "per_second": self.rate,
            "megabytes_per_second": self.megabytes_per_second,
            "server_cpu_us_per_item": self.cpu_per_item.map(micros),
            "server_cpu_us_per_megabyte": self.cpu_per_megabyte.map(micros),
            "p50_us": micros(self.p50),
            "p99_us": micros(self.p99),
            "max_us": micros(self.max),
            "worst_client_p99_us": micros(self.worst_client_p99),
            "slowest_client_per_second": self.slowest_client_rate,
            "flood_per_second": self.flood_rate,
            "errors": self.errors,
            "first_error": self.first_error,
            "server_resident_bytes": self.server_resident,
            "store_cpu_us_per_item": self.store_cpu_per_item.map(micros),
            "store_resident_bytes": self.store_resident,
        })
    }
}

fn milliseconds(time: Duration) -> String {
    format!("{:.2} ms", time.as_secs_f64() * 1e3)
}
