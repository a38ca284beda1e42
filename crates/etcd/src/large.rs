//! Transactions with more changes than one request of etcd takes.
//!
//! | state of `PREFIX/plan` | event | next |
//! |---|---|---|
//! | empty | the changes are staged in parts; one request with the transaction's conditions names them in the plan | in force |
//! | in force | each server applies all staged changes to its copy, at the plan's revision | in force |
//! | in force | a server makes a part of the changes, on condition that the plan has not changed | in force |
//! | in force | all parts are made; one request empties the plan and removes what is staged | empty |
//!
//! 1. The plan's request is the commit: before it, no server knows the changes; after it, each has
//!    all of them.
//! 2. Every commit compares the revision of the plan, and none begins while a plan is in force. So
//!    no server commits over a state that lacks the changes.
//! 3. Parts can be made twice, so any server finishes a plan. The server that made it begins at
//!    once, the others after a while.
//! 4. Changes that were staged and never named are removed with the next plan.

use std::time::Duration;

use bytes::{Buf, BufMut, Bytes};
use cellar_celldb::{Change, Overlay, Table, sealed};

use crate::client::{Client, Fault};
use crate::copy::table_named;
use crate::follow::Followed;
use crate::guards::is_at;
use crate::keys::Keys;
use crate::messages::{DeleteRangeRequest, Request, RequestOp, TxnRequest};
use crate::slots::put;

/// Bytes of one staged part; etcd takes requests of 1.5 MiB. A single value may be larger.
const PART_BYTES: usize = 256 << 10;
/// Rows of one request that makes changes: etcd takes 128 operations.
const ROWS: usize = 100;
/// Bytes of one request that makes changes.
const BYTES: usize = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(2);
/// The time for which the server that made a plan has to finish it alone.
const GRACE: Duration = Duration::from_secs(1);
/// Pause after a failure.
const PAUSE: Duration = Duration::from_millis(300);
const SEAL: &str = "staged";

/// Stages the changes of a transaction under an id.
pub(crate) async fn stage(
    client: &Client,
    keys: &Keys,
    id: &str,
    changes: &Overlay,
) -> Result<(), Fault> {
    let (mut part, mut number) = (Vec::new(), 0);
    let mut changes = changes.iter().peekable();
    while let Some((table, key, value)) = changes.next() {
        encode(&mut part, table, key, value.as_ref());
        if part.len() >= PART_BYTES || changes.peek().is_none() {
            let at = keys.staged(id, number);
            let sealed = sealed::seal(SEAL, &at, &part);
            let request = TxnRequest {
                success: vec![put(at, sealed.into())],
                ..TxnRequest::default()
            };
            client.txn(&request, PATIENCE).await?;
            part.clear();
            number += 1;
        }
    }
    Ok(())
}

/// The request that puts a plan into force.
pub(crate) fn operations(keys: &Keys, id: &str) -> Vec<RequestOp> {
    vec![
        put(keys.plan(), Bytes::copy_from_slice(id.as_bytes())),
        put(keys.last(), Bytes::new()),
    ]
}

fn encode(part: &mut Vec<u8>, table: Table, key: &[u8], value: Option<&Bytes>) {
    // Limits of tables, keys and values keep each length far below its field.
    let length = |bytes: &[u8]| u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    part.put_u8(value.is_some().into());
    let empty = Bytes::new();
    for bytes in [table.name().as_bytes(), key, value.unwrap_or(&empty)] {
        part.put_u32(length(bytes));
        part.put_slice(bytes);
    }
}

/// The changes of a staged part; `None` if it is not as it was written.
pub(crate) fn decode(key: &[u8], stored: &[u8]) -> Option<Vec<Change>> {
    let mut part = sealed::open(SEAL, key, stored).ok()?;
    let mut changes = Vec::new();
    while !part.is_empty() {
        let is_put = part.try_get_u8().ok()? != 0;
        let mut field = || {
            let length = usize::try_from(part.try_get_u32().ok()?).ok()?;
            let (bytes, rest) = part.split_at_checked(length)?;
            part = rest;
            Some(bytes)
        };
        let (table, key, value) = (field()?, field()?, field()?);
        changes.push(Change {
            table: table_named(std::str::from_utf8(table).ok()?)?,
            key: Bytes::copy_from_slice(key),
            value: is_put.then(|| Bytes::copy_from_slice(value)),
        });
    }
    Some(changes)
}

/// The operations that make some changes, in the order of their tables.
pub(crate) fn made<'c>(
    keys: &Keys,
    changes: impl Iterator<Item = (Table, &'c Bytes, &'c Option<Bytes>)>,
) -> Vec<RequestOp> {
    let mut operations = Vec::new();
    let mut deleted: Vec<Table> = Vec::new();
    for (table, key, value) in changes {
        let row = keys.row(table, key);
        operations.push(match value {
            Some(value) => put(row, sealed::seal(table.name(), key, value).into()),
            None => {
                deleted.push(table);
                let delete = DeleteRangeRequest {
                    key: row,
                    range_end: Bytes::new(),
                };
                Request::Delete(delete).into()
            }
        });
    }
    deleted.dedup();
    let marks = deleted.into_iter();
    operations.extend(marks.map(|table| put(keys.deleted(table), Bytes::new())));
    operations.push(put(keys.last(), Bytes::new()));
    operations
}

/// Makes all changes of the plan in force and empties it, unless another server does.
async fn finish(client: &Client, keys: &Keys, at: i64, changes: &[Change]) -> Result<(), Fault> {
    let mut rest = changes;
    while !rest.is_empty() {
        let mut bytes = 0;
        let count = rest.iter().take(ROWS).take_while(|change| {
            let is_first = bytes == 0;
            bytes += change.key.len() + change.value.as_ref().map_or(0, Bytes::len) + 1;
            is_first || bytes <= BYTES
        });
        let (part, later) = rest.split_at(count.count().min(rest.len()));
        rest = later;
        let request = TxnRequest {
            compare: vec![is_at(keys.plan(), at)],
            success: made(keys, part.iter().map(|c| (c.table, &c.key, &c.value))),
            ..TxnRequest::default()
        };
        if !client.txn(&request, PATIENCE).await?.succeeded {
            return Ok(());
        }
    }
    let (key, range_end) = keys.all_staged();
    let request = TxnRequest {
        compare: vec![is_at(keys.plan(), at)],
        success: vec![
            put(keys.plan(), Bytes::new()),
            Request::Delete(DeleteRangeRequest { key, range_end }).into(),
            put(keys.last(), Bytes::new()),
        ],
        ..TxnRequest::default()
    };
    client.txn(&request, PATIENCE).await.map(drop)
}

/// Finishes plans. Runs until it is dropped. Ids of this server's plans begin with `instance`.
pub(crate) async fn run(followed: &Followed, instance: &str) {
    let mut reached = followed.reached.subscribe();
    loop {
        let plan = followed.copy.read().plan_in_force();
        let Some((at, id, changes)) = plan else {
            if reached.changed().await.is_err() {
                return;
            }
            continue;
        };
        if !id.starts_with(instance) {
            tokio::time::sleep(GRACE).await;
            if followed.copy.read().plan_revision() != at {
                continue;
            }
            tracing::info!(id, "finishing a large transaction of another server");
        }
        match finish(&followed.client, &followed.keys, at, &changes).await {
            Ok(()) => {
                // The watch delivers the end.
                let ended = reached.wait_for(|_| followed.copy.read().plan_revision() != at);
                let _late = tokio::time::timeout(PATIENCE, ended).await;
            }
            Err(fault) => {
                tracing::warn!(%fault, "a large transaction is not finished yet");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn staged_parts_are_read_back_and_damage_is_noticed() {
        let table = Table::new("test");
        let mut part = Vec::new();
        encode(&mut part, table, b"a", Some(&Bytes::from_static(b"one")));
        encode(&mut part, table, b"b", None);
        encode(&mut part, table, b"", Some(&Bytes::new()));
        let stored = sealed::seal(SEAL, b"key", &part);
        let changes = decode(b"key", &stored).unwrap();
        let shown: Vec<_> = changes
            .iter()
            .map(|change| (&change.key[..], change.value.as_deref()))
            .collect();
        assert_eq!(
            shown,
            [
                (&b"a"[..], Some(&b"one"[..])),
                (&b"b"[..], None),
                (&b""[..], Some(&b""[..]))
            ]
        );
        for bit in 0..stored.len() * 8 {
            let mut stored = stored.clone();
            stored[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(b"key", &stored).is_none());
        }
        for length in 0..part.len() {
            let stored = sealed::seal(SEAL, b"key", &part[..length]);
            let cut = decode(b"key", &stored);
            assert!(cut.is_none_or(|changes| changes.len() < 3));
        }
    }
}
