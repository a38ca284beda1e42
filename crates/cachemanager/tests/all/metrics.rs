//! The figures of a cache are text that Prometheus reads, under the names that the manual lists.

use std::collections::{BTreeMap, BTreeSet};

use super::bench::Bench;

/// Every metric with its type.
const KNOWN: [(&str, &str); 18] = [
    ("cellar_cache_hits_total", "counter"),
    ("cellar_cache_misses_total", "counter"),
    ("cellar_fetched_bytes_total", "counter"),
    ("cellar_stored_bytes_total", "counter"),
    ("cellar_fetched_directly_bytes_total", "counter"),
    ("cellar_stored_directly_bytes_total", "counter"),
    ("cellar_prefetched_files_total", "counter"),
    ("cellar_prefetched_files_used_total", "counter"),
    ("cellar_passthrough_files_total", "counter"),
    ("cellar_passthrough_bytes", "gauge"),
    ("cellar_callback_breaks_total", "counter"),
    ("cellar_cache_bytes", "gauge"),
    ("cellar_cache_limit_bytes", "gauge"),
    ("cellar_cache_dirty_bytes", "gauge"),
    ("cellar_cache_dirty_files", "gauge"),
    ("cellar_cache_failed_files", "gauge"),
    ("cellar_cache_vnodes", "gauge"),
    ("cellar_rpc_seconds", "histogram"),
];

/// Source: Prometheus, exposition formats, text format 0.0.4.
#[tokio::test(flavor = "multi_thread")]
async fn figures_are_text_of_prometheus() {
    let bench = Bench::start();
    let client = bench.client().await;
    client.names().await;
    let text = client.cache.metrics();
    println!("{text}");
    let (mut types, mut helped) = (BTreeMap::new(), BTreeSet::new());
    let mut series = BTreeMap::new();
    for line in text.lines() {
        if let Some((name, _)) = line.strip_prefix("# HELP ").and_then(|s| s.split_once(' ')) {
            assert!(helped.insert(name), "twice: {line}");
        } else if let Some((name, kind)) =
            line.strip_prefix("# TYPE ").and_then(|s| s.split_once(' '))
        {
            assert!(types.insert(name, kind).is_none(), "twice: {line}");
        } else {
            let (name, value) = line.rsplit_once(' ').expect("a sample");
            let family = name.split('{').next().expect("a name");
            let parts = ["_bucket", "_sum", "_count"].map(|end| family.strip_suffix(end));
            let of_histogram = parts.into_iter().flatten().next();
            let kind = types.get(of_histogram.unwrap_or(family));
            assert_eq!(kind == Some(&"histogram"), of_histogram.is_some(), "{line}");
            assert!(kind.is_some(), "no type before {line}");
            let value: f64 = value.parse().expect("a value");
            assert!(series.insert(name, value).is_none(), "twice: {line}");
        }
    }
    assert_eq!(types, BTreeMap::from(KNOWN));
    assert_eq!(helped, BTreeSet::from(KNOWN.map(|(name, _)| name)));
    assert!(series["cellar_cache_misses_total{what=\"listing\"}"] > 0.0);

    // Counts of a histogram grow with the bound, and the last is of all answers.
    let mut last = (String::new(), 0.0);
    let mut servers = 0;
    for line in text.lines() {
        let Some(labels) = line.strip_prefix("cellar_rpc_seconds_bucket{") else {
            continue;
        };
        let (labels, value) = labels.split_once("} ").expect("a sample");
        let value: f64 = value.parse().expect("a value");
        let mut labels = labels.split(',');
        let server = labels.find(|label| label.starts_with("server="));
        let server = server.expect("a server").to_owned();
        assert!(server != last.0 || value >= last.1, "{line}");
        if line.contains("le=\"+Inf\"") {
            let all = format!("cellar_rpc_seconds_count{{{server}}}");
            assert_eq!(series.get(&*all), Some(&value));
            servers += 1;
        }
        last = (server, value);
    }
    assert!(servers > 0);
}
