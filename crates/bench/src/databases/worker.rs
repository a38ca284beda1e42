//! One thread of one client of the database servers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cellar_rpc::CallError;
use cellar_wire::ids::{ViceId, VolumeId};
use cellar_wire::{AbortCode, List, pr, vl};
use rand::Rng;

use super::Operation;
use super::population::{FIRST_SERVER, user_id, user_name, volume_ids, volume_name};
use crate::client::Client;
use crate::load::Work;

/// The measured databases, and the number of new entries in them.
pub(super) struct Contents {
    pub(super) volumes: u32,
    pub(super) users: u32,
    pub(super) create_from: u32,
    pub(super) created: AtomicU64,
}

/// One thread of one client.
pub(super) struct Worker {
    operation: Operation,
    client: Client,
    contents: Arc<Contents>,
}

impl Worker {
    pub(super) fn new(operation: Operation, client: Client, contents: Arc<Contents>) -> Self {
        Self {
            operation,
            client,
            contents,
        }
    }
}

impl Work for Worker {
    async fn step(&mut self) -> Result<(), CallError> {
        let contents = &self.contents;
        match self.operation {
            Operation::VlByName => {
                let number = rand::rng().random_range(0..contents.volumes);
                by_name(&self.client, number).await
            }
            Operation::VlById => {
                let number = rand::rng().random_range(0..contents.volumes);
                by_id(&self.client, number).await
            }
            Operation::PrNameToId => {
                let number = rand::rng().random_range(0..contents.users);
                name_to_id(&self.client, number).await
            }
            Operation::PrCps => {
                let number = rand::rng().random_range(0..contents.users);
                let id = ViceId(user_id(number));
                let reply = self.client.protection.call(&pr::GetCPS { id }).await?;
                expect(reply.list.contains(&id), AbortCode::PRNOENT)
            }
            Operation::VlCreate => {
                let number = contents.created.fetch_add(1, Ordering::Relaxed);
                let first = contents.create_from + 3 * number as u32;
                create_volume(&self.client, first).await
            }
            Operation::PrCreate => {
                let number = contents.created.fetch_add(1, Ordering::Relaxed);
                let name = format!("new{}x{number}", contents.create_from);
                create_user(&self.client, &name).await
            }
        }
    }
}

/// Looks up a volume by its name.
pub(super) async fn by_name(client: &Client, number: u32) -> Result<(), CallError> {
    let volumename = vl::VolumeNameArgument::new(volume_name(number)).unwrap_or_default();
    let reply = client
        .location
        .call(&vl::GetEntryByNameU { volumename })
        .await?;
    let right = reply.entry.volume_ids[0].0 == volume_ids(number)[0];
    expect(right, AbortCode::VL_NOENT)
}

async fn by_id(client: &Client, number: u32) -> Result<(), CallError> {
    let lookup = vl::GetEntryByIDN {
        volid: VolumeId(volume_ids(number)[0]),
        voltype: vl::ANYVOL,
    };
    let reply = client.location.call(&lookup).await?;
    let right = *reply.entry.name == *volume_name(number).as_bytes();
    expect(right, AbortCode::VL_NOENT)
}

/// Looks up the id of a user.
pub(super) async fn name_to_id(client: &Client, number: u32) -> Result<(), CallError> {
    let name = pr::PrName::new(user_name(number).as_bytes()).unwrap_or_default();
    let names = pr::NameList::from_iter_cut([name]);
    let reply = client.protection.call(&pr::NameToID { names }).await?;
    let right = *reply.ids == [ViceId(user_id(number))];
    expect(right, AbortCode::PRNOENT)
}

/// Creates the entry of a volume with three ids from `first` on.
pub(super) async fn create_volume(client: &Client, first: u32) -> Result<(), CallError> {
    let newentry = vl::NvldbEntry {
        name: vl::EntryName::new(format!("new.{first}").as_bytes()).unwrap_or_default(),
        sites: List::from_iter_cut([vl::Site {
            server: FIRST_SERVER,
            partition: 0,
            flags: vl::VLSF_RWVOL,
        }]),
        volume_ids: [0, 1, 2].map(|kind| VolumeId(first + kind)),
        clone_id: VolumeId(0),
        flags: vl::VLF_RWEXISTS,
        match_index: 0,
    };
    client.location.call(&vl::CreateEntryN { newentry }).await?;
    Ok(())
}

/// Creates a user.
pub(super) async fn create_user(client: &Client, name: &str) -> Result<(), CallError> {
    let create = pr::NewEntry {
        name: pr::PrNameArgument::new(name.as_bytes().to_vec()).unwrap_or_default(),
        flag: 0,
        owner: ViceId(0),
    };
    client.protection.call(&create).await?;
    Ok(())
}

/// Fails with `code` if a server answered for another entry.
fn expect(right: bool, code: AbortCode) -> Result<(), CallError> {
    match right {
        true => Ok(()),
        false => Err(CallError::Aborted(code)),
    }
}
