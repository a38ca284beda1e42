//! The pieces of a cell that have been used: partitions, databases, and the files that hold keys
//! and superusers.
//!
//! A start makes the missing pieces of a new cell. It must not take a lost piece for a new one, so
//! each piece has an id of its own, and `cell.json` records it. Thus a start distinguishes an
//! unmounted disk, a removed file or a wrong disk from a partition that never existed.

use std::collections::{BTreeMap, BTreeSet};

use cellar_celldb::DatabaseId;
use cellar_volume::StoreId;
use cellar_wire::ids::PartitionId;
use serde_json::{Map, Value, json};

/// The pieces that have been used, with their ids.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Used {
    /// Partitions. A partition that had no space for an id is missing here.
    pub(crate) partitions: BTreeMap<PartitionId, StoreId>,
    /// The databases, if they are on this machine.
    pub(crate) database: Option<DatabaseId>,
    /// Names of the files in `server-etc`.
    pub(crate) trust: BTreeSet<String>,
}

impl Used {
    /// The form in `cell.json`.
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

/// `b` for `/vicepb`.
pub(crate) fn letters(id: PartitionId) -> String {
    id.to_string().trim_start_matches("/vicep").to_owned()
}
