//! Metrics of one moment, and their form for Prometheus.
//!
//! A scrape first gathers all figures, which may wait for other threads, and then writes them. The
//! writer is a library. Names follow Prometheus's conventions: `cellar_THING_UNIT`, seconds and
//! bytes; the library appends `_total` to counters. No label names a user or a volume, so the
//! number of series does not grow with a cell.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, prometheus_text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

/// The labels of a sample: names and values.
pub(crate) type Labels = Vec<(&'static str, String)>;

/// Metrics of one moment, in the order of the answer.
#[derive(Debug, Default)]
pub(crate) struct Snapshot(Vec<Family>);

/// All samples of one name.
#[derive(Debug)]
pub(crate) struct Family {
    name: String,
    help: &'static str,
    kind: Kind,
    samples: Vec<(Labels, Value)>,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Counter,
    Gauge,
    Histogram,
}

#[derive(Debug)]
enum Value {
    Count(u64),
    Seconds(f64),
    Histogram {
        sum: f64,
        /// Upper bounds in seconds, each with the number of samples above the bound before it.
        buckets: Vec<(f64, u64)>,
    },
}

impl Snapshot {
    /// Adds a counter of integers. Its samples follow with [`Family::sample`].
    pub(crate) fn counters(&mut self, name: impl Into<String>, help: &'static str) -> &mut Family {
        self.family(name.into(), help, Kind::Counter)
    }

    /// Adds a gauge. Its samples follow.
    pub(crate) fn gauges(&mut self, name: impl Into<String>, help: &'static str) -> &mut Family {
        self.family(name.into(), help, Kind::Gauge)
    }

    /// Adds a histogram of durations. Its samples follow.
    pub(crate) fn histograms(
        &mut self,
        name: impl Into<String>,
        help: &'static str,
    ) -> &mut Family {
        self.family(name.into(), help, Kind::Histogram)
    }

    /// Adds a counter that has no labels.
    pub(crate) fn counter(&mut self, name: &str, help: &'static str, value: u64) {
        self.counters(name, help).sample([], value);
    }

    /// Adds a gauge that has no labels.
    pub(crate) fn gauge(&mut self, name: &str, help: &'static str, value: u64) {
        self.gauges(name, help).sample([], value);
    }

    fn family(&mut self, name: String, help: &'static str, kind: Kind) -> &mut Family {
        let at = self.0.iter().position(|family| family.name == name);
        let at = at.unwrap_or_else(|| {
            self.0.push(Family {
                name,
                help,
                kind,
                samples: Vec::new(),
            });
            self.0.len() - 1
        });
        &mut self.0[at]
    }

    /// The metrics as text. Families without samples are left out.
    pub(crate) fn text(self) -> Result<String, fmt::Error> {
        let (mut registry, mut text) = (Registry::default(), String::new());
        registry.register_collector(Box::new(self));
        prometheus_text::encode(&mut text, &registry)?;
        Ok(text)
    }
}

impl Family {
    /// Adds a sample of a counter or gauge.
    pub(crate) fn sample<const N: usize>(
        &mut self,
        labels: [(&'static str, &dyn fmt::Display); N],
        value: u64,
    ) {
        self.samples.push((owned(labels), Value::Count(value)));
    }

    /// Adds a sample of a counter or gauge of seconds.
    pub(crate) fn seconds<const N: usize>(
        &mut self,
        labels: [(&'static str, &dyn fmt::Display); N],
        value: f64,
    ) {
        self.samples.push((owned(labels), Value::Seconds(value)));
    }

    /// Adds a histogram. `buckets` are upper bounds in seconds, the last one infinite, each with
    /// the number of samples above the bound before it.
    pub(crate) fn histogram<const N: usize>(
        &mut self,
        labels: [(&'static str, &dyn fmt::Display); N],
        sum: f64,
        buckets: Vec<(f64, u64)>,
    ) {
        let value = Value::Histogram { sum, buckets };
        self.samples.push((owned(labels), value));
    }

    fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let kind = match self.kind {
            Kind::Counter => MetricType::Counter,
            Kind::Gauge => MetricType::Gauge,
            Kind::Histogram => MetricType::Histogram,
        };
        let mut family = encoder.encode_descriptor(&self.name, self.help, None, kind)?;
        for (labels, value) in &self.samples {
            if labels.is_empty() {
                self.encode_value(&mut family, value)?;
            } else {
                self.encode_value(&mut family.encode_family(labels)?, value)?;
            }
        }
        Ok(())
    }

    fn encode_value(&self, encoder: &mut MetricEncoder<'_>, value: &Value) -> fmt::Result {
        match (self.kind, value) {
            (Kind::Counter, Value::Count(value)) => {
                encoder.encode_counter::<NoLabelSet, _, u64>(value, None)
            }
            (Kind::Counter, Value::Seconds(value)) => {
                encoder.encode_counter::<NoLabelSet, _, f64>(value, None)
            }
            (_, Value::Count(value)) => encoder.encode_gauge(value),
            (_, Value::Seconds(value)) => encoder.encode_gauge(value),
            (_, Value::Histogram { sum, buckets }) => {
                let count = buckets.iter().map(|(_, count)| count).sum();
                encoder.encode_histogram::<NoLabelSet>(*sum, count, buckets, None)
            }
        }
    }
}

fn owned<const N: usize>(labels: [(&'static str, &dyn fmt::Display); N]) -> Labels {
    let labels = labels.into_iter();
    labels
        .map(|(name, value)| (name, value.to_string()))
        .collect()
}

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let families = self.0.iter().filter(|family| !family.samples.is_empty());
        for family in families {
            family.encode(&mut encoder)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_its_form() {
        let mut snapshot = Snapshot::default();
        snapshot.counter("cellar_calls", "Calls", 3);
        snapshot.counters("cellar_none", "Without samples");
        let sizes = snapshot.gauges("cellar_size_bytes", "Sizes");
        sizes.sample([("partition", &"/vicepa"), ("odd", &"a\"b")], 7);
        sizes.seconds([("partition", &"/vicepb")], 0.5);
        let times = snapshot.histograms("cellar_time_seconds", "Times");
        times.histogram(
            [("port", &"files")],
            2.5,
            vec![(1.0, 2), (f64::INFINITY, 1)],
        );
        let text = snapshot.text().expect("text");
        let expected = "\
# HELP cellar_calls_total Calls
# TYPE cellar_calls_total counter
cellar_calls_total 3
# HELP cellar_size_bytes Sizes
# TYPE cellar_size_bytes gauge
cellar_size_bytes{partition=\"/vicepa\",odd=\"a\\\"b\"} 7
cellar_size_bytes{partition=\"/vicepb\"} 0.5
# HELP cellar_time_seconds Times
# TYPE cellar_time_seconds histogram
cellar_time_seconds_bucket{port=\"files\",le=\"1\"} 2
cellar_time_seconds_bucket{port=\"files\",le=\"+Inf\"} 3
cellar_time_seconds_sum{port=\"files\"} 2.5
cellar_time_seconds_count{port=\"files\"} 3
";
        assert_eq!(text, expected);
    }
}
