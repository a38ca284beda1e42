//! Fills a new database in etcd with the rows of another one.
//!
//! 1. `PREFIX/last` is written first, and `PREFIX/meta` last. A server that finds only the first
//!    refuses to start.
//! 2. Between them the rows are written, read again and compared. So a database with `meta` is
//!    whole.
//! 3. A repeated copy first removes what an interrupted one has left.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cellar_celldb::{DatabaseId, Error, View, sealed};
use tokio::task::{JoinError, JoinSet};

use crate::client::Client;
use crate::copy::table_named;
use crate::engine::{Settings, connect, meta, unavailable, wait_for};
use crate::guards::is_at;
use crate::keys::{Keys, Meta};
use crate::messages::{DeleteRangeRequest, Request, RequestOp, TxnRequest};
use crate::pages::read_all;
use crate::slots::put;

/// Rows of one request.
const ROWS: usize = 100;
/// Bytes of one request: etcd takes 1.5 MiB.
const BYTES: usize = 1 << 20;
/// Requests at the same time. Each waits for the syncs of a majority of the members.
const AT_ONCE: usize = 8;
const PATIENCE: Duration = Duration::from_secs(30);

/// Rows by table and key.
type Contents = BTreeMap<(String, Bytes), Bytes>;

/// Whether there is no database at the prefix.
///
/// # Errors
/// Those of [`Etcd::open`](crate::Etcd::open).
pub fn is_empty(settings: &Settings) -> Result<bool, Error> {
    let (runtime, keys, client) = connect(settings)?;
    let place = settings.place();
    let found = wait_for(&runtime, async move { meta(&client, &keys, &place).await });
    runtime.shutdown_background();
    Ok(found??.is_none())
}

/// Makes a database with the rows, the id and revisions above `revision`, and compares it with
/// them. Returns the number of rows.
///
/// # Errors
/// [`Error::InUse`] if there is a database, [`Error::Damaged`] if it does not have the rows
/// afterwards, and those of [`Etcd::open`](crate::Etcd::open).
pub fn fill(
    settings: &Settings,
    id: DatabaseId,
    revision: u64,
    rows: impl IntoIterator<Item = (String, Bytes, Bytes)>,
) -> Result<usize, Error> {
    let rows = rows.into_iter();
    let contents: Contents = rows
        .map(|(table, key, value)| ((table, key), value))
        .collect();
    let (runtime, keys, client) = connect(settings)?;
    let client = Arc::new(client);
    let place = settings.place();
    let count = contents.len();
    let meta_row = Meta { id, base: revision };
    let filled = wait_for(&runtime, async move {
        if meta(&client, &keys, &place).await?.is_some() {
            return Err(Error::InUse(place));
        }
        write(&client, &keys, &contents).await?;
        if !has(&client, &keys, &contents).await? {
            let reason = "it does not have the rows that were written".to_owned();
            return Err(Error::Damaged {
                path: place,
                reason,
            });
        }
        let request = TxnRequest {
            compare: vec![is_at(keys.meta(), 0)],
            success: vec![put(keys.meta(), meta_row.seal(&keys.meta()))],
            ..TxnRequest::default()
        };
        let answer = client.txn(&request, PATIENCE).await;
        let answer = answer.map_err(|fault| unavailable(&fault))?;
        if !answer.succeeded && meta(&client, &keys, &place).await? != Some(meta_row) {
            return Err(Error::InUse(place));
        }
        Ok(())
    });
    runtime.shutdown_background();
    filled??;
    Ok(count)
}

async fn write(client: &Arc<Client>, keys: &Keys, contents: &Contents) -> Result<(), Error> {
    let (key, range_end) = keys.all();
    let all = DeleteRangeRequest { key, range_end };
    send(client, vec![Request::Delete(all).into()]).await?;
    send(client, vec![put(keys.last(), Bytes::new())]).await?;
    let mut sending = JoinSet::new();
    let (mut batch, mut bytes) = (Vec::new(), 0);
    for ((name, key), value) in contents {
        let table = table_named(name)
            .ok_or_else(|| Error::Failed(format!("'{name}' is no name of a table").into()))?;
        if batch.len() == ROWS || bytes + value.len() > BYTES {
            if sending.len() >= AT_ONCE {
                sent(sending.join_next().await)?;
            }
            let (client, batch) = (Arc::clone(client), std::mem::take(&mut batch));
            sending.spawn(async move { send(&client, batch).await });
            bytes = 0;
        }
        bytes += key.len() + value.len();
        batch.push(put(
            keys.row(table, key),
            sealed::seal(name, key, value).into(),
        ));
    }
    if !batch.is_empty() {
        send(client, batch).await?;
    }
    while !sending.is_empty() {
        sent(sending.join_next().await)?;
    }
    Ok(())
}

fn sent(done: Option<Result<Result<(), Error>, JoinError>>) -> Result<(), Error> {
    match done {
        Some(Ok(sent)) => sent,
        Some(Err(cause)) => Err(Error::Failed(cause.to_string().into())),
        None => Ok(()),
    }
}

async fn send(client: &Client, success: Vec<RequestOp>) -> Result<(), Error> {
    let request = TxnRequest {
        success,
        ..TxnRequest::default()
    };
    let answer = client.txn(&request, PATIENCE).await;
    answer.map(drop).map_err(|fault| unavailable(&fault))
}

/// Whether the database has these rows and no others.
async fn has(client: &Client, keys: &Keys, contents: &Contents) -> Result<bool, Error> {
    let copy = read_all(client, keys).await;
    let copy = copy.map_err(|fault| unavailable(&fault))?;
    let count: usize = copy.tables().map(|(_, rows)| rows).sum();
    if count != contents.len() {
        return Ok(false);
    }
    for ((name, key), value) in contents {
        let found = match table_named(name) {
            Some(table) => copy.get(table, key)?,
            None => None,
        };
        if found.as_ref() != Some(value) {
            return Ok(false);
        }
    }
    Ok(true)
}
