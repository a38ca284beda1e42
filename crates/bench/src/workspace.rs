//! Files for a measurement, created before it and removed after it.
//!
//! All files are in one new directory under the root of the volume. There are 50 small files and a
//! large one that all clients read. Each storing thread has a small and a large file. There are
//! also directories for `CreateFile`. An AFS directory holds 64,435 short names, so creations
//! continue in the next directory after [`NAMES_PER_DIRECTORY`]. At any time all clients create in
//! the same directory.

use std::sync::Arc;

use bytes::Bytes;
use cellar_rpc::CallError;
use cellar_wire::ids::{Fid, VolumeId};
use cellar_wire::rxafs::{self, AfsStoreStatus};
use cellar_wire::vl::VolumeNameArgument;
use cellar_wire::{AfsName, pr};
use rand::RngCore;

use crate::client::Client;
use crate::operation::Operation;

/// Size of small files, bytes.
pub(crate) const SMALL_BYTES: u64 = 4096;
/// Size of the pieces of large transfers, bytes.
pub(crate) const PIECE_BYTES: u64 = 1 << 20;
/// Size of large files, bytes.
pub(crate) const FILE_BYTES: u64 = 16 << 20;

const NAMES_PER_DIRECTORY: u64 = 40_000;

/// Files and directories of the workers.
pub(crate) struct Workspace {
    pub(crate) volume_name: VolumeNameArgument,
    pub(crate) principal: pr::NameList,
    pub(crate) small: Vec<Fid>,
    pub(crate) large: Fid,
    pub(crate) own_small: Vec<Fid>,
    pub(crate) own_large: Vec<Fid>,
    pub(crate) payload: Bytes,
    create_in: Vec<Fid>,
    pub(crate) root: Fid,
    name: AfsName,
    directory: Fid,
    files: Vec<AfsName>,
}

impl Workspace {
    /// Creates the files that `operations` need for `workers` threads.
    ///
    /// # Errors
    /// The server refuses: no rights in the root directory of the volume, or no space.
    pub(crate) async fn make(
        client: &Client,
        volume: VolumeId,
        volume_name: &str,
        workers: usize,
        operations: &[Operation],
    ) -> Result<Self, CallError> {
        let any = |wanted: &[Operation]| {
            operations
                .iter()
                .any(|o| wanted.contains(o) || *o == Operation::Mixed)
        };
        let mut payload = vec![0; PIECE_BYTES as usize];
        rand::rng().fill_bytes(&mut payload);
        let root = Fid::root(volume);
        let unique: u32 = rand::random();
        let dir_name = name(&format!("bench-{unique:08x}"));
        let directory = make_directory(client, root, &dir_name).await?;
        let mut workspace = Self {
            volume_name: VolumeNameArgument::new(volume_name.as_bytes().to_vec())
                .unwrap_or_default(),
            principal: pr::NameList::from_iter_cut([
                pr::PrName::new(b"system:anyuser").unwrap_or_default()
            ]),
            small: Vec::new(),
            large: directory,
            own_small: Vec::new(),
            own_large: Vec::new(),
            payload: payload.into(),
            create_in: Vec::new(),
            root,
            name: dir_name,
            directory,
            files: Vec::new(),
        };
        if any(&[
            Operation::FetchStatus,
            Operation::BulkStatus,
            Operation::Fetch4k,
        ]) {
            for number in 0..rxafs::BULK_MAX {
                let fid = workspace
                    .file(client, &format!("s{number}"), SMALL_BYTES)
                    .await?;
                workspace.small.push(fid);
            }
        }
        if any(&[Operation::Fetch1m]) {
            workspace.large = workspace.file(client, "large", FILE_BYTES).await?;
        }
        for number in 0..workers {
            if any(&[Operation::Store4k]) {
                let fid = workspace
                    .file(client, &format!("o{number}"), SMALL_BYTES)
                    .await?;
                workspace.own_small.push(fid);
            }
            // Not part of the mix.
            if operations.contains(&Operation::Store1m) {
                let fid = workspace
                    .file(client, &format!("l{number}"), FILE_BYTES)
                    .await?;
                workspace.own_large.push(fid);
            }
        }
        if any(&[
            Operation::Create,
            Operation::CreateStore,
            Operation::MakeMany,
        ]) {
            for number in 0..CREATE_DIRECTORIES {
                let name = create_name(number);
                workspace
                    .create_in
                    .push(make_directory(client, directory, &name).await?);
            }
        }
        Ok(workspace)
    }

    /// Returns the directory of the `number`-th created file; `None` if every directory is full.
    pub(crate) fn create_directory(&self, number: u64) -> Option<Fid> {
        self.create_in
            .get(usize::try_from(number / NAMES_PER_DIRECTORY).ok()?)
            .copied()
    }

    /// Removes everything, including the `created` files of the workers. Best effort.
    pub(crate) async fn remove(self: Arc<Self>, clients: &[Client], created: u64) {
        let mut tasks = Vec::new();
        for (index, client) in clients.iter().enumerate().take(REMOVERS) {
            let (workspace, client) = (self.clone(), client.clone());
            let step = clients.len().min(REMOVERS) as u64;
            tasks.push(async move {
                let mut number = index as u64;
                while number < created {
                    if let Some(dir_fid) = workspace.create_directory(number) {
                        let name = name(&format!("f{number}"));
                        let _ = client.file.call(&rxafs::RemoveFile { dir_fid, name }).await;
                    }
                    number += step;
                }
            });
        }
        join_all(tasks).await;
        let Some(client) = clients.first() else {
            return;
        };
        let dir_fid = self.directory;
        for number in 0..self.create_in.len() {
            let name = create_name(number);
            let _ = client.file.call(&rxafs::RemoveDir { dir_fid, name }).await;
        }
        for name in self.files.iter().cloned() {
            let _ = client.file.call(&rxafs::RemoveFile { dir_fid, name }).await;
        }
        let arguments = rxafs::RemoveDir {
            dir_fid: self.root,
            name: self.name.clone(),
        };
        let _ = client.file.call(&arguments).await;
    }

    async fn file(&mut self, client: &Client, text: &str, length: u64) -> Result<Fid, CallError> {
        let file_name = name(text);
        let dir_fid = self.directory;
        let in_status = AfsStoreStatus {
            unix_mode: Some(0o644),
            ..AfsStoreStatus::default()
        };
        let create = rxafs::CreateFile {
            dir_fid,
            name: file_name.clone(),
            in_status,
        };
        let fid = client.file.call(&create).await?.fid;
        self.files.push(file_name);
        let mut position = 0;
        while position < length {
            let piece = (length - position).min(PIECE_BYTES);
            let in_status = AfsStoreStatus::default();
            let arguments = rxafs::StoreData64 {
                fid,
                in_status,
                position,
                length: piece,
                file_length: position + piece,
            };
            let mut call = client.file.open(&arguments).await?;
            call.write(self.payload.slice(..piece as usize)).await?;
            call.read::<rxafs::StoreData64Reply>().await?;
            position += piece;
        }
        Ok(fid)
    }
}

/// A name known to be short enough.
pub(crate) fn name(text: &str) -> AfsName {
    AfsName::new(text.as_bytes().to_vec()).unwrap_or_default()
}

async fn make_directory(client: &Client, dir_fid: Fid, name: &AfsName) -> Result<Fid, CallError> {
    let in_status = AfsStoreStatus {
        unix_mode: Some(0o755),
        ..AfsStoreStatus::default()
    };
    let arguments = rxafs::MakeDir {
        dir_fid,
        name: name.clone(),
        in_status,
    };
    Ok(client.file.call(&arguments).await?.fid)
}

fn create_name(number: usize) -> AfsName {
    name(&format!("c{number}"))
}

/// Awaits all, interleaved on one thread.
async fn join_all(tasks: Vec<impl Future<Output = ()>>) {
    let mut tasks: Vec<_> = tasks.into_iter().map(Box::pin).collect();
    std::future::poll_fn(|cx| {
        tasks.retain_mut(|task| task.as_mut().poll(cx).is_pending());
        if tasks.is_empty() {
            std::task::Poll::Ready(())
        } else {
            std::task::Poll::Pending
        }
    })
    .await;
}

const CREATE_DIRECTORIES: usize = 16;
const REMOVERS: usize = 16;
