//! `prdb.DB0`, the protection database of OpenAFS.

use cellar_wire::ViceId;
use cellar_wire::pr::{PRGRP, PRQUOTA};

use super::ubik::{Contents, id_bucket, name_bucket};
use crate::databases::population::{group_id, group_name, groups, groups_of, user_id, user_name};

const HEADER_BYTES: usize = 65_600;
const BLOCK_BYTES: usize = 192;
const NAME_BASE: u32 = 31;
/// The flag of a block that continues a list.
const CONTINUES: u32 = 4;
/// Groups that a user may create.
const QUOTA: u32 = 20;
/// Ids in an entry, and in a block that continues it.
const ENTRY_IDS: usize = 10;
const MORE_IDS: usize = 39;
const LIST: usize = 36;

/// Places in the header.
mod header {
    pub(super) const SIZE: usize = 4;
    pub(super) const END: usize = 12;
    pub(super) const MAX_GROUP: usize = 16;
    pub(super) const MAX_USER: usize = 20;
    pub(super) const USERS: usize = 36;
    pub(super) const GROUPS: usize = 40;
    pub(super) const NAMES: usize = 72;
    pub(super) const IDS: usize = 32_836;
}

/// Places in an entry.
mod entry {
    pub(super) const FLAGS: usize = 0;
    pub(super) const ID: usize = 4;
    pub(super) const NEXT: usize = 12;
    pub(super) const NEXT_ID: usize = 76;
    pub(super) const NEXT_NAME: usize = 80;
    pub(super) const OWNER: usize = 84;
    pub(super) const CREATOR: usize = 88;
    pub(super) const GROUP_QUOTA: usize = 92;
    pub(super) const FOREIGN_QUOTA: usize = 96;
    pub(super) const COUNT: usize = 100;
    pub(super) const OWNED: usize = 108;
    pub(super) const NEXT_OWNED: usize = 112;
    pub(super) const NAME: usize = 128;
}

/// The groups of a new database, all owned by the first one.
const FIRST: [(ViceId, &str); 5] = [
    (ViceId::ADMINISTRATORS, "system:administrators"),
    (ViceId::BACKUP, "system:backup"),
    (ViceId::ANYUSER, "system:anyuser"),
    (ViceId::AUTHUSER, "system:authuser"),
    (ViceId::PTSVIEWERS, "system:ptsviewers"),
];

struct Database {
    out: Contents,
    owner: usize,
}

/// The file.
pub(super) fn database(users: u32) -> Vec<u8> {
    let count = groups(users);
    let mut members = vec![Vec::new(); count as usize];
    for user in 0..users {
        for group in groups_of(user, count) {
            members[group as usize].push(user_id(user));
        }
    }
    let mut database = Database {
        out: Contents::new(HEADER_BYTES),
        owner: HEADER_BYTES,
    };
    for (id, name) in FIRST {
        database.add(id.0, name, &[]);
    }
    database.add(ViceId::ANONYMOUS.0, "anonymous", &[]);
    for user in 0..users {
        let of = groups_of(user, count).map(group_id);
        database.add(user_id(user), &user_name(user), &of);
    }
    for (group, members) in (0..).zip(&members) {
        database.add(group_id(group), &group_name(group), members);
    }
    let mut out = database.out;
    out.put(header::SIZE, HEADER_BYTES as u32);
    out.put(header::MAX_GROUP, group_id(count - 1) as u32);
    out.put(header::MAX_USER, user_id(users - 1) as u32);
    out.put(header::USERS, users + 1);
    out.put(header::GROUPS, count + FIRST.len() as u32);
    out.put(header::END, out.len());
    out.into_file()
}

impl Database {
    fn add(&mut self, id: i32, name: &str, list: &[i32]) {
        let out = &mut self.out;
        let place = out.grow(BLOCK_BYTES);
        let (flags, quota) = if id < 0 { (PRGRP, 0) } else { (PRQUOTA, QUOTA) };
        for (at, word) in [
            (entry::FLAGS, flags),
            (entry::ID, id as u32),
            (entry::OWNER, ViceId::ADMINISTRATORS.0 as u32),
            (entry::CREATOR, ViceId::ADMINISTRATORS.0 as u32),
            (entry::GROUP_QUOTA, quota),
            (entry::FOREIGN_QUOTA, quota),
            (entry::COUNT, list.len() as u32),
        ] {
            out.put(place + at, word);
        }
        out.put_bytes(place + entry::NAME, name.as_bytes());
        let head = header::NAMES + 4 * name_bucket(name.as_bytes(), NAME_BASE);
        out.push(head, place, entry::NEXT_NAME);
        out.push(header::IDS + 4 * id_bucket(id), place, entry::NEXT_ID);
        if id < 0 {
            out.push(self.owner + entry::OWNED, place, entry::NEXT_OWNED);
        }
        let (here, more) = list.split_at(list.len().min(ENTRY_IDS));
        put_ids(out, place, here);
        let mut before = place;
        for ids in more.chunks(MORE_IDS) {
            let block = out.grow(BLOCK_BYTES);
            out.put(block + entry::FLAGS, CONTINUES);
            out.put(block + entry::ID, id as u32);
            out.put(before + entry::NEXT, block as u32);
            put_ids(out, block, ids);
            before = block;
        }
    }
}

fn put_ids(out: &mut Contents, block: usize, ids: &[i32]) {
    for (index, id) in ids.iter().enumerate() {
        out.put(block + LIST + 4 * index, *id as u32);
    }
}
