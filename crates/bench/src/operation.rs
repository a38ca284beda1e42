//! The measured operations; each is one call (or one bulk call) to a server.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use cellar_client::FetchCall;
use cellar_rpc::CallError;
use cellar_wire::ids::{Fid, Uniquifier, VnodeId};
use cellar_wire::rxafs::{self, AfsStoreStatus};
use cellar_wire::{List, pr, vl};
use clap::ValueEnum;
use rand::Rng;

use crate::client::Client;
use crate::load::Work;
use crate::report::Kind;
use crate::workspace::{FILE_BYTES, PIECE_BYTES, SMALL_BYTES, Workspace};

/// Action of one step of the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Operation {
    /// RXAFS_GetTime.
    GetTime,
    /// RXAFS_FetchStatus of one of 50 files.
    FetchStatus,
    /// RXAFS_InlineBulkStatus of 50 files; counted in files.
    BulkStatus,
    /// RXAFS_FetchData64 of a 4 KiB file.
    Fetch4k,
    /// RXAFS_FetchData64 of 1 MiB pieces of a larger file.
    Fetch1m,
    /// RXAFS_StoreData64 over a 4 KiB file, one for each thread.
    Store4k,
    /// RXAFS_StoreData64 of 1 MiB pieces, one file for each thread.
    Store1m,
    /// RXAFS_CreateFile, all clients in one directory.
    Create,
    /// RXAFS_CreateFile, then RXAFS_StoreData64 of 4 KiB: creates a file with contents.
    CreateStore,
    /// RXAFS_MakeMany of 64 files of 4 KiB, which only Cellar's servers have; counted in files.
    MakeMany,
    /// VL_GetEntryByNameU of the volume's name.
    VlByName,
    /// PR_NameToID of one name.
    PrNameToId,
    /// RXAFS_GetTime on a new connection for each call: with a level, a challenge and a ticket
    /// each.
    NewConnection,
    /// At random: 60 % FetchStatus, 20 % Fetch4k, 8 % BulkStatus, 8 % Store4k, 2 % Create, 2 %
    /// Fetch1m.
    Mixed,
}

impl Operation {
    /// The kind of the results.
    pub(crate) fn kind(self) -> Kind {
        Kind {
            label: self.label(),
            items: match self {
                Self::BulkStatus => rxafs::BULK_MAX as u64,
                Self::MakeMany => rxafs::MAKE_MANY_MAX as u64,
                _ => 1,
            },
            bytes: matches!(self, Self::Fetch1m | Self::Store1m).then_some(PIECE_BYTES),
            by_client: self == Self::Mixed,
        }
    }

    fn label(self) -> &'static str {
        match self {
            Self::GetTime => "GetTime",
            Self::FetchStatus => "FetchStatus",
            Self::BulkStatus => "InlineBulkStatus of 50, files",
            Self::Fetch4k => "FetchData64 4 KiB",
            Self::Fetch1m => "FetchData64 1 MiB pieces",
            Self::Store4k => "StoreData64 4 KiB",
            Self::Store1m => "StoreData64 1 MiB",
            Self::Create => "CreateFile in one directory",
            Self::CreateStore => "CreateFile, StoreData64 4 KiB",
            Self::MakeMany => "MakeMany of 64 x 4 KiB, files",
            Self::VlByName => "VL_GetEntryByNameU",
            Self::PrNameToId => "PR_NameToID",
            Self::NewConnection => "GetTime on a new connection",
            Self::Mixed => "mixed",
        }
    }

    /// Every operation that is one call, in the order of the tables.
    pub(crate) const ALL: [Self; 10] = [
        Self::GetTime,
        Self::FetchStatus,
        Self::BulkStatus,
        Self::Fetch4k,
        Self::Fetch1m,
        Self::Store4k,
        Self::Store1m,
        Self::Create,
        Self::VlByName,
        Self::PrNameToId,
    ];
}

/// One thread of one client, with the state of its operations.
pub(crate) struct Worker {
    operation: Operation,
    client: Client,
    workspace: Arc<Workspace>,
    number: usize,
    count: u64,
    payload: Bytes,
    created: Arc<AtomicU64>,
    numbers: Numbers,
}

/// Numbers for files that were reserved for one worker and are unused.
#[derive(Default)]
struct Numbers {
    vnode: VnodeId,
    uniquifier: Uniquifier,
    left: u32,
}

impl Worker {
    /// `number` counts over all clients; `created` is shared by all of them.
    pub(crate) fn new(
        operation: Operation,
        client: Client,
        workspace: Arc<Workspace>,
        number: usize,
        created: Arc<AtomicU64>,
    ) -> Self {
        let payload = workspace.payload.clone();
        Self {
            operation,
            client,
            workspace,
            number,
            count: number as u64 * 7,
            payload,
            created,
            numbers: Numbers::default(),
        }
    }

    async fn execute(&mut self, operation: Operation) -> Result<(), CallError> {
        self.count += 1;
        match operation {
            Operation::GetTime => {
                self.client.file.call(&rxafs::GetTime {}).await?;
            }
            Operation::FetchStatus => {
                let fid = self.small_file();
                self.client.file.call(&rxafs::FetchStatus { fid }).await?;
            }
            Operation::BulkStatus => self.bulk_status().await?,
            Operation::Fetch4k => {
                let fid = self.small_file();
                self.fetch(fid, 0, SMALL_BYTES).await?;
            }
            Operation::Fetch1m => {
                let position = self.count % (FILE_BYTES / PIECE_BYTES) * PIECE_BYTES;
                self.fetch(self.workspace.large, position, PIECE_BYTES)
                    .await?;
            }
            Operation::Store4k => {
                let fid = self.workspace.own_small[self.number];
                self.store(fid, 0, SMALL_BYTES, SMALL_BYTES).await?;
            }
            Operation::Store1m => {
                let position = self.count % (FILE_BYTES / PIECE_BYTES) * PIECE_BYTES;
                let fid = self.workspace.own_large[self.number];
                self.store(fid, position, PIECE_BYTES, FILE_BYTES).await?;
            }
            Operation::Create => {
                self.create().await?;
            }
            Operation::CreateStore => {
                let fid = self.create().await?;
                self.store(fid, 0, SMALL_BYTES, SMALL_BYTES).await?;
            }
            Operation::MakeMany => self.make_many().await?,
            Operation::VlByName => {
                let volumename = self.workspace.volume_name.clone();
                self.client
                    .location
                    .call(&vl::GetEntryByNameU { volumename })
                    .await?;
            }
            Operation::PrNameToId => {
                let names = self.workspace.principal.clone();
                self.client.protection.call(&pr::NameToID { names }).await?;
            }
            Operation::NewConnection => {
                let connection = self.client.reconnect();
                connection.call(&rxafs::GetTime {}).await?;
            }
            Operation::Mixed => {
                let operation = mixed(rand::rng().random_range(0..100));
                Box::pin(self.execute(operation)).await?;
            }
        }
        Ok(())
    }

    fn small_file(&self) -> Fid {
        self.workspace.small[self.count as usize % self.workspace.small.len()]
    }

    async fn bulk_status(&self) -> Result<(), CallError> {
        let fids = rxafs::Fids::from_iter_cut(self.workspace.small.iter().copied());
        let reply = self
            .client
            .file
            .call(&rxafs::InlineBulkStatus { fids })
            .await?;
        match reply
            .statuses
            .iter()
            .find(|status| status.error_code.0 != 0)
        {
            Some(status) => Err(CallError::Aborted(status.error_code)),
            None => Ok(()),
        }
    }

    async fn fetch(&self, fid: Fid, position: u64, length: u64) -> Result<(), CallError> {
        let mut call = FetchCall::open(&self.client.file, fid, position, length).await?;
        if call.is_short() {
            // The file is shorter than the bench stored it: the server lost bytes.
            return Err(CallError::BadReply(cellar_wire::DecodeError::Truncated));
        }
        call.read(length, drop).await?;
        call.finish().await?;
        Ok(())
    }

    async fn store(
        &self,
        fid: Fid,
        position: u64,
        length: u64,
        file_length: u64,
    ) -> Result<(), CallError> {
        let in_status = AfsStoreStatus::default();
        let arguments = rxafs::StoreData64 {
            fid,
            in_status,
            position,
            length,
            file_length,
        };
        let mut call = self.client.file.open(&arguments).await?;
        call.write(self.payload.slice(..length as usize)).await?;
        call.read::<rxafs::StoreData64Reply>().await?;
        Ok(())
    }

    async fn make_many(&mut self) -> Result<(), CallError> {
        let many = rxafs::MAKE_MANY_MAX as u32;
        if self.numbers.left < many {
            let reserve = rxafs::ReserveVnodes {
                dir_fid: self.workspace.root,
                files: rxafs::RESERVE_MAX,
                directories: 0,
            };
            let reserved = self.client.file.call(&reserve).await?;
            self.numbers = Numbers {
                vnode: reserved.first_file,
                uniquifier: reserved.first_uniquifier,
                left: reserved.files,
            };
        }
        let first = self.created.fetch_add(many.into(), Ordering::Relaxed);
        let mut creates = Vec::with_capacity(rxafs::MAKE_MANY_MAX);
        for number in first..first + u64::from(many) {
            let Some(dir) = self.workspace.create_directory(number) else {
                return Err(CallError::Aborted(cellar_wire::abort::AbortCode(27)));
            };
            let numbers = &mut self.numbers;
            creates.push(rxafs::CreateRequest {
                dir_vnode: dir.vnode,
                dir_uniquifier: dir.uniquifier,
                name: crate::workspace::name(&format!("f{number}")),
                vnode: numbers.vnode,
                uniquifier: numbers.uniquifier,
                kind: rxafs::FileType::File,
                in_status: AfsStoreStatus {
                    unix_mode: Some(0o644),
                    ..AfsStoreStatus::default()
                },
                text: rxafs::AfsPath::default(),
                length: SMALL_BYTES as u32,
            });
            numbers.vnode.0 += 2;
            numbers.uniquifier.0 += 1;
            numbers.left = numbers.left.saturating_sub(1);
        }
        let arguments = rxafs::MakeMany {
            volume: self.workspace.root.volume,
            creates: List::from_iter_cut(creates),
        };
        let mut call = self.client.file.open(&arguments).await?;
        for _ in 0..many {
            call.write(self.payload.slice(..SMALL_BYTES as usize))
                .await?;
        }
        let reply = call.read::<rxafs::MakeManyReply>().await?;
        match reply.results.iter().find(|result| result.code.0 != 0) {
            Some(result) => Err(CallError::Aborted(result.code)),
            None => Ok(()),
        }
    }

    async fn create(&self) -> Result<Fid, CallError> {
        let number = self.created.fetch_add(1, Ordering::Relaxed);
        let Some(dir_fid) = self.workspace.create_directory(number) else {
            return Err(CallError::Aborted(cellar_wire::abort::AbortCode(27)));
        };
        let name = crate::workspace::name(&format!("f{number}"));
        let in_status = AfsStoreStatus {
            unix_mode: Some(0o644),
            ..AfsStoreStatus::default()
        };
        let create = rxafs::CreateFile {
            dir_fid,
            name,
            in_status,
        };
        Ok(self.client.file.call(&create).await?.fid)
    }
}

impl Work for Worker {
    async fn step(&mut self) -> Result<(), CallError> {
        self.execute(self.operation).await
    }
}

fn mixed(percent: u32) -> Operation {
    match percent {
        0..60 => Operation::FetchStatus,
        60..80 => Operation::Fetch4k,
        80..88 => Operation::BulkStatus,
        88..96 => Operation::Store4k,
        96..98 => Operation::Create,
        _ => Operation::Fetch1m,
    }
}

#[cfg(test)]
mod tests {
    use super::{Operation, mixed};

    #[test]
    fn the_mix_is_what_it_says() {
        let count = |wanted| (0..100).filter(|percent| mixed(*percent) == wanted).count();
        assert_eq!(count(Operation::FetchStatus), 60);
        assert_eq!(count(Operation::Store4k), 8);
        assert_eq!(count(Operation::Fetch1m), 2);
    }
}
