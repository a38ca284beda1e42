//! SIGHUP (`systemctl reload`): a daemon reads its configuration again.
//!
//! 1. Some keys are applied at once ([`APPLIED`]). Each other key whose value has changed gets a
//!    log line that asks for a restart.
//! 2. A wrong file changes nothing; the log names its line.
//! 3. `UserList`, `KeyFileExt`, `rxkad.keytab`, `krb.conf` and `krb.excl` need no signal. A change
//!    is read at the next use.

use std::collections::BTreeMap;
use std::path::Path;

use cellar_fileserver::FileServer;
use serde_json::Value;

use crate::failure::Outcome;
use crate::log;
use crate::metrics::Metrics;
use crate::up::recall_limit;

/// Keys that a reload applies.
pub(crate) const APPLIED: [&str; 3] = ["log", "metrics-token", "recall-limit"];

/// Reads the value of each key from all sources.
type Read = fn() -> Outcome<BTreeMap<String, Value>>;

/// The configuration that is in force.
pub(crate) struct Reloader {
    read: Read,
    in_force: BTreeMap<String, Value>,
}

impl Reloader {
    /// The configuration at the start.
    pub(crate) fn new(read: Read) -> Self {
        let in_force = read().unwrap_or_else(|failure| {
            tracing::error!(%failure, "the configuration has become wrong since the start");
            BTreeMap::new()
        });
        Self { read, in_force }
    }

    /// Reads the configuration again, and applies it as far as possible.
    pub(crate) fn reload(&mut self, metrics: Option<&Metrics>, files: Option<&FileServer>) {
        let now = match (self.read)() {
            Ok(now) => now,
            Err(failure) => {
                tracing::error!(%failure, "the configuration is wrong, and nothing changes");
                return;
            }
        };
        let mut changes = 0;
        for (key, value) in &now {
            if key == "metrics-token" {
                // The contents of the file may have changed.
                apply_token(metrics, value);
            }
            let before = self.in_force.entry(key.clone());
            if before.or_insert_with(|| value.clone()) == value {
                continue;
            }
            changes += 1;
            if !APPLIED.contains(&&**key) {
                tracing::warn!(key, %value, "the change of this key needs a restart");
                continue;
            }
            if key == "log"
                && let Err(cause) = log::set_filter(value.as_str())
            {
                tracing::error!(key, %value, %cause, "the log keeps its filter");
                continue;
            }
            if key == "recall-limit"
                && let Err(cause) = apply_limits(files, value)
            {
                tracing::error!(key, %value, %cause, "the limits of recalls stay as they are");
                continue;
            }
            tracing::info!(key, %value, "the change of this key is in force");
            self.in_force.insert(key.clone(), value.clone());
        }
        tracing::info!(changes, "the configuration was read again");
    }
}

/// Gives a file server new limits of recalls.
fn apply_limits(files: Option<&FileServer>, value: &Value) -> Result<(), String> {
    let words = match value {
        Value::Array(words) => words.iter().collect(),
        Value::Null => Vec::new(),
        word => vec![word],
    };
    let limits = words
        .into_iter()
        .map(|word| recall_limit::parse(word.as_str().unwrap_or_default()))
        .collect::<Result<_, _>>()?;
    if let Some(files) = files {
        files.set_recall_limits(limits);
    }
    Ok(())
}

/// Reads the token of the metrics again.
fn apply_token(metrics: Option<&Metrics>, file: &Value) {
    let Some(metrics) = metrics else { return };
    if let Err(failure) = metrics.read_token(file.as_str().map(Path::new)) {
        tracing::error!(%failure, "readers of metrics still need the old token");
    }
}
