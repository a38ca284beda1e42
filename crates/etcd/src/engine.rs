//! The engine: opening, views, status, end.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cellar_celldb::{
    CellDb, DatabaseId, Error, History, Revision, Table, Transaction, Verdict, View, Watch,
    export_rows,
};
use parking_lot::{ArcRwLockReadGuard, RawRwLock, RwLock};
use tokio::runtime::Runtime;
use tokio::sync::watch;

use crate::certificates::Tls;
use crate::client::{Client, Fault};
use crate::commit::Committer;
use crate::copy::Copy;
use crate::follow::Followed;
use crate::guards::is_at;
use crate::keys::{BadMeta, Keys, Meta};
use crate::messages::{RangeRequest, Request, TxnRequest};
use crate::monitor;
use crate::pages::read_all;
use crate::slots::{put, slots};
use crate::status::{Figures, Status};

/// The longest wait for the cluster at the start.
const OPENING: Duration = Duration::from_secs(10);
/// Threads for the network of one engine.
const THREADS: usize = 2;

/// Where a database is, and how it is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The addresses of the cluster's members: `http://HOST:2379`, or with `https://`.
    pub endpoints: Vec<String>,
    /// Certificates for `https://`.
    pub tls: Tls,
    /// The first part of all keys of the database, without a `/` at its end.
    pub prefix: String,
    /// The name of this server: no other one that runs has it.
    pub writer: String,
    /// Creates a database if there is none.
    pub create: bool,
}

impl Settings {
    /// The place of the database in messages.
    pub(crate) fn place(&self) -> PathBuf {
        PathBuf::from(format!("etcd:{}", self.prefix))
    }
}

/// A cell database in an etcd cluster.
pub struct Etcd {
    followed: Arc<Followed>,
    committer: Arc<Committer>,
    id: DatabaseId,
    /// `None` only while it is dropped.
    runtime: Option<Runtime>,
}

/// A runtime and a client in it.
pub(crate) fn connect(settings: &Settings) -> Result<(Runtime, Keys, Client), Error> {
    let failed = |reason: String| Error::Failed(reason.into());
    let keys = Keys::new(&settings.prefix).map_err(failed)?;
    let is_name = !settings.writer.is_empty()
        && settings
            .writer
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && byte != b'/');
    if !is_name {
        return Err(failed(format!(
            "'{}' is no name of a writer",
            settings.writer
        )));
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(THREADS)
        .thread_name("etcd")
        .enable_all()
        .build()
        .map_err(|cause| failed(cause.to_string()))?;
    let client = {
        let _inside = runtime.enter();
        Client::new(&settings.endpoints, &settings.tls).map_err(failed)?
    };
    Ok((runtime, keys, client))
}

/// Waits for a future on the threads of a runtime. The caller may be a thread of another one.
pub(crate) fn wait_for<T: Send + 'static>(
    runtime: &Runtime,
    future: impl Future<Output = T> + Send + 'static,
) -> Result<T, Error> {
    let (answer, answered) = std::sync::mpsc::sync_channel(1);
    runtime.spawn(async move {
        let _gone = answer.send(future.await);
    });
    answered
        .recv()
        .map_err(|_| Error::Failed("the threads for etcd have ended".into()))
}

/// The error for a fault of a read or of the start.
pub(crate) fn unavailable(fault: &Fault) -> Error {
    Error::Unavailable(fault.to_string().into())
}

/// The meta row of a database; `None` if there is none.
pub(crate) async fn meta(
    client: &Client,
    keys: &Keys,
    place: &Path,
) -> Result<Option<Meta>, Error> {
    let request = RangeRequest {
        key: keys.meta(),
        ..RangeRequest::default()
    };
    let answer = client.range(&request, OPENING).await;
    let answer = answer.map_err(|fault| unavailable(&fault))?;
    let row = answer.kvs.first();
    row.map(|row| open_meta(&row.key, &row.value, place))
        .transpose()
}

fn open_meta(key: &[u8], stored: &[u8], place: &Path) -> Result<Meta, Error> {
    let path = place.to_path_buf();
    Meta::open(key, stored).map_err(|bad| match bad {
        BadMeta::Newer(format) => Error::Format { path, format },
        BadMeta::Damaged(reason) => Error::Damaged {
            path,
            reason: reason.to_owned(),
        },
    })
}

/// Creates the database unless another server does so at the same time.
async fn create(client: &Client, keys: &Keys, place: &Path) -> Result<Meta, Error> {
    let fresh = Meta {
        id: DatabaseId::random(),
        base: 0,
    };
    let request = TxnRequest {
        compare: vec![is_at(keys.meta(), 0), is_at(keys.last(), 0)],
        success: vec![
            put(keys.meta(), fresh.seal(&keys.meta())),
            put(keys.last(), Bytes::new()),
        ],
        failure: vec![
            Request::Range(RangeRequest {
                key: keys.meta(),
                ..RangeRequest::default()
            })
            .into(),
        ],
    };
    // If it arrives twice, the second one finds the first one's row.
    let answer = client.txn(&request, OPENING).await;
    let answer = answer.map_err(|fault| unavailable(&fault))?;
    if answer.succeeded {
        return Ok(fresh);
    }
    match answer.row(0) {
        Some(row) => open_meta(&row.key, &row.value, place),
        None => Err(Error::Damaged {
            path: place.to_path_buf(),
            reason: "a copy to it was interrupted: repeat 'cellar db switch etcd'".to_owned(),
        }),
    }
}

impl Etcd {
    /// Opens or creates a database, and reads all of it.
    ///
    /// # Errors
    /// [`Error::Failed`] for settings that cannot be, [`Error::Unavailable`] if the cluster does
    /// not answer, [`Error::Missing`] if there is no database and none shall be made,
    /// [`Error::Format`] and [`Error::Damaged`] about the database.
    pub fn open(settings: &Settings) -> Result<Self, Error> {
        let (runtime, keys, client) = connect(settings)?;
        let client = Arc::new(client);
        let opening = {
            let (keys, client, settings) = (keys.clone(), client.clone(), settings.clone());
            let place = settings.place();
            async move {
                let meta = match meta(&client, &keys, &place).await? {
                    Some(meta) => meta,
                    None if settings.create => create(&client, &keys, &place).await?,
                    None => return Err(Error::Missing(place)),
                };
                let copy = read_all(&client, &keys).await;
                Ok((meta, copy.map_err(|fault| unavailable(&fault))?))
            }
        };
        let (Meta { id, base }, copy) = wait_for(&runtime, opening)??;
        let (reached, _) = watch::channel(copy.revision);
        let last = base + u64::try_from(copy.last).unwrap_or_default();
        let followed = Arc::new(Followed {
            history: Arc::new(History::new(Revision(last))),
            copy: Arc::new(RwLock::new(copy)),
            figures: Arc::new(Figures::new()),
            keys,
            client,
            base,
            reached,
            behind: tokio::sync::Notify::new(),
        });
        let free = slots(&followed.keys, &settings.writer);
        let committer = Committer::new(followed.clone(), runtime.handle().clone(), free);
        let finisher = committer.clone();
        runtime.spawn(async move { finisher.finish_plans().await });
        let follower = followed.clone();
        runtime.spawn(async move { follower.run().await });
        let watched = followed.clone();
        runtime.spawn(async move { monitor::run(&watched).await });
        Ok(Self {
            followed,
            committer,
            id,
            runtime: Some(runtime),
        })
    }

    /// Identifies the database.
    pub fn id(&self) -> DatabaseId {
        self.id
    }

    /// The state of the engine and of its cluster, as last seen. Does not wait.
    pub fn status(&self) -> Status {
        let revision = self.revision().0;
        self.followed
            .figures
            .status(self.followed.keys.prefix(), revision)
    }

    /// Looks at the cluster and returns its state. Waits for slow members.
    ///
    /// # Errors
    /// [`Error::Failed`] while the engine ends.
    pub fn look(&self) -> Result<Status, Error> {
        let Some(runtime) = &self.runtime else {
            return Ok(self.status());
        };
        let followed = self.followed.clone();
        wait_for(runtime, async move {
            monitor::look(&followed.client, &followed.figures).await;
        })?;
        Ok(self.status())
    }

    /// The number of rows of each table that has some.
    pub fn tables(&self) -> Vec<(Table, usize)> {
        self.followed.copy.read_recursive().tables().collect()
    }

    /// Writes all rows to a file, as text. Returns their number.
    ///
    /// # Errors
    /// [`Error::BadRow`] for a damaged row, [`Error::Failed`] for the file.
    pub fn export(&self, to: &Path) -> Result<u64, Error> {
        let mut rows: Vec<(Table, Vec<u8>, Vec<u8>)> = Vec::new();
        let (view, revision) = self.snapshot()?;
        for (table, _) in self.tables() {
            let all = (std::ops::Bound::Unbounded, std::ops::Bound::Unbounded);
            view.visit(table, all, &mut |key, value| {
                rows.push((table, key.to_vec(), value.to_vec()));
                true
            })?;
        }
        // The follower waits while there is a view.
        drop(view);
        let rows = rows
            .iter()
            .map(|(table, key, value)| (table.name(), &key[..], &value[..]));
        export_rows(to, self.id, revision, rows)
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// A view that holds the copy still. The follower waits for it.
struct Held(ArcRwLockReadGuard<RawRwLock, Copy>);

impl View for Held {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>, Error> {
        self.0.get(table, key)
    }

    fn visit(
        &self,
        table: Table,
        range: (std::ops::Bound<&[u8]>, std::ops::Bound<&[u8]>),
        each: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), Error> {
        self.0.visit(table, range, each)
    }
}

impl CellDb for Etcd {
    fn revision(&self) -> Revision {
        self.followed.history.newest()
    }

    fn snapshot(&self) -> Result<(Box<dyn View>, Revision), Error> {
        // Another view of the same thread may wait behind the follower: recursive.
        let held = self.followed.copy.read_arc_recursive();
        let revision = self.followed.history.newest();
        Ok((Box::new(Held(held)), revision))
    }

    fn transact(
        &self,
        body: &mut dyn FnMut(&mut Transaction<'_>) -> Verdict,
    ) -> Result<Revision, Error> {
        self.committer.transact(body)
    }

    fn watch(&self, tables: &[Table], from: Revision) -> Watch {
        self.followed.history.watch(tables, from)
    }
}
