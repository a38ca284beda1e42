//! The load of file servers by volume, user and client machine, for `cellar top`.
//!
//! A server counts calls since it entered a volume, user or machine into its table. Two readings
//! give the load of the time between them. OpenAFS's servers do not have the table.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use cellar_client::{Cell, Client};
use cellar_rpc::CallOptions;
use cellar_wire::afsvol::{self, GetLoad, LOAD_CLIENTS, LOAD_USERS, LOAD_VOLUMES, LoadEntry};
use cellar_wire::ids::ViceId;
use futures_util::future::join_all;
use serde::Serialize;

use crate::error::{Error, Result};
use crate::vos::Volumes;

/// The kinds of things that cause load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LoadKind {
    /// Volumes.
    Volumes,
    /// Users.
    Users,
    /// Client machines.
    Clients,
}

impl LoadKind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Volumes, Self::Users, Self::Clients];

    fn number(self) -> u32 {
        match self {
            Self::Volumes => LOAD_VOLUMES,
            Self::Users => LOAD_USERS,
            Self::Clients => LOAD_CLIENTS,
        }
    }
}

/// Counts of calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Calls.
    pub operations: u64,
    /// Bytes of files.
    pub bytes: u64,
    /// Microseconds in which the server worked on the calls, or waited for disks and clients.
    pub micros: u64,
}

/// The counts of a server at one time, by key.
pub type Reading = HashMap<[u32; 4], Counts>;

/// Reads a table of a file server.
///
/// # Errors
/// The server does not answer or does not have the table, or the caller is no superuser.
pub async fn read(
    client: &Client,
    cell: &Cell,
    server: IpAddr,
    kind: LoadKind,
    patience: Duration,
) -> Result<Reading> {
    let peer = SocketAddr::new(server, cell.ports.volume);
    let servers = client.servers();
    let connection = servers.connection(&cell.name, peer, &afsvol::PACKAGE);
    let options = CallOptions {
        timeout: Some(patience),
    };
    let arguments = GetLoad {
        kind: kind.number(),
    };
    let reply = connection.call_with(&arguments, options).await;
    let reply = reply.map_err(|cause| Error::refused("cannot read the load", cause))?;
    let counts = |entry: &LoadEntry| Counts {
        operations: entry.operations,
        bytes: entry.bytes,
        micros: entry.micros,
    };
    let entries = reply.entries.iter();
    Ok(entries.map(|entry| (entry.key, counts(entry))).collect())
}

/// The load between two readings of one server. Keys without calls are left out.
pub fn between(before: &Reading, after: &Reading) -> Reading {
    let difference = |(key, now): (&[u32; 4], &Counts)| {
        let then = before.get(key).copied().unwrap_or_default();
        // The server forgot the entry meanwhile, and its counts began again.
        let then = match then.operations > now.operations {
            true => Counts::default(),
            false => then,
        };
        let counts = Counts {
            operations: now.operations - then.operations,
            bytes: now.bytes.saturating_sub(then.bytes),
            micros: now.micros.saturating_sub(then.micros),
        };
        (counts.operations > 0).then_some((*key, counts))
    };
    after.iter().filter_map(difference).collect()
}

/// The names of keys, in their order. A key without a name gets its number.
pub async fn names(
    client: &Client,
    cell: &Cell,
    kind: LoadKind,
    keys: &[[u32; 4]],
    patience: Duration,
) -> Vec<String> {
    let numbers: Vec<String> = keys.iter().map(|key| number(kind, *key)).collect();
    match kind {
        LoadKind::Clients => numbers,
        LoadKind::Users => {
            let ids: Vec<_> = keys
                .iter()
                .map(|key| ViceId(key[3].cast_signed()))
                .collect();
            let names = client.names_of(cell, &ids);
            match tokio::time::timeout(patience, names).await {
                Ok(Ok(names)) => names,
                _ => numbers,
            }
        }
        LoadKind::Volumes => {
            let volumes = Volumes::new(client, cell);
            let named = numbers.into_iter().map(async |id| {
                let entry = tokio::time::timeout(patience, volumes.entry(&id)).await;
                let Ok(Ok(entry)) = entry else { return id };
                let is = |volume: cellar_wire::ids::VolumeId| volume.to_string() == id;
                let suffix = match () {
                    () if is(entry.read_only) => ".readonly",
                    () if is(entry.backup) => ".backup",
                    () => "",
                };
                format!("{}{suffix}", entry.name)
            });
            join_all(named).await
        }
    }
}

/// The number of a volume or user, or the address of a machine.
pub fn number(kind: LoadKind, key: [u32; 4]) -> String {
    match kind {
        LoadKind::Volumes => key[3].to_string(),
        LoadKind::Users => key[3].cast_signed().to_string(),
        LoadKind::Clients => {
            let bits = key
                .iter()
                .fold(0, |bits, word| bits << 32 | u128::from(*word));
            Ipv6Addr::from_bits(bits).to_canonical().to_string()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(operations: u64) -> Counts {
        Counts {
            operations,
            bytes: operations * 10,
            micros: operations,
        }
    }

    #[test]
    fn the_load_is_the_difference_of_two_readings() {
        let key = |n| [0, 0, 0, n];
        let before = Reading::from([
            (key(1), counts(5)),
            (key(2), counts(9)),
            (key(3), counts(7)),
        ]);
        let after = Reading::from([
            (key(1), counts(8)),
            (key(2), counts(9)),
            (key(3), counts(2)),
            (key(4), counts(1)),
        ]);
        let load = between(&before, &after);
        let expected = [
            (key(1), counts(3)),
            (key(3), counts(2)),
            (key(4), counts(1)),
        ];
        assert_eq!(load, Reading::from(expected), "the third began again");
    }

    #[test]
    fn keys_have_the_form_of_their_kind() {
        assert_eq!(number(LoadKind::Users, [0, 0, 0, u32::MAX]), "-1");
        let address = [0, 0, 0xffff, 0xc000_0201];
        assert_eq!(number(LoadKind::Clients, address), "192.0.2.1");
    }
}
