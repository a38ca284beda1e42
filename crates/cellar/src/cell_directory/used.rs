//! Which pieces of a cell have been used: partitions, databases, what the servers trust.
//!
//! A start makes what is missing of a new cell. So that it does not take a lost piece for a new
//! one, each piece has an id of its own, and `cell.json` has the same: an unmounted disk, a
//! removed file or another disk at the place of a partition is told from a partition that never
//! was.

use std::collections::{BTreeMap, BTreeSet};

use cellar_celldb::DatabaseId;
use cellar_volume::StoreId;
use cellar_wire::ids::PartitionId;
use serde_json::{Map, Value, json};

/// The pieces that have been used, with their ids.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Used {
    /// Partitions. One that had no room for an id is not here.
    pub(crate) partitions: BTreeMap<PartitionId, StoreId>,
    /// The databases, where they are on this machine.
    pub(crate) database: Option<DatabaseId>,
    /// Names of the files in `server-etc`.
    pub(crate) trust: BTreeSet<String>,
}

impl Used {
    /// As `cell.json` has it.
    pub(super) fn to_json(&self) -> Value {
        let partitions: Map<_, _> = self
            .partitions
            .iter()
            .map(|(id, store)| (letters(*id), store.to_string().into()))
            .collect();
        json!({
            "partitions": partitions,
            "database": self.database.map(|id| id.to_string()),
            "server-etc": self.trust,
        })
    }

    pub(super) fn from_json(value: &Value) -> Option<Self> {
        let mut partitions = BTreeMap::new();
        for (letters, id) in value["partitions"].as_object()? {
            partitions.insert(PartitionId::parse(letters)?, id.as_str()?.parse().ok()?);
        }
        let database = match &value["database"] {
            Value::Null => None,
            id => Some(id.as_str()?.parse().ok()?),
        };
        let trust = value["server-etc"].as_array()?.iter();
        let trust = trust.map(|name| name.as_str().map(str::to_owned));
        Some(Self {
            partitions,
            database,
            trust: trust.collect::<Option<_>>()?,
        })
    }
}

/// `b` of `/vicepb`.
pub(crate) fn letters(id: PartitionId) -> String {
    id.to_string().trim_start_matches("/vicep").to_owned()
}
