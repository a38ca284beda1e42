//! The same databases as an export of Cellar: `docs/format/databases.md` describes the rows.

use std::io;
use std::path::Path;

use bytes::{Bytes, BytesMut};
use cellar_celldb::{Error, Revision, export_rows, read_export};
use cellar_wire::pr::{PRGRP, PRQUOTA, PrName};
use cellar_wire::vl::{EntryName, VLF_RWEXISTS, VLSF_RWVOL};
use cellar_wire::{AfsUuid, Encode, ViceId};

use crate::databases::population::{
    FIRST_SERVER, SERVERS, group_id, group_name, groups, groups_of, user_id, user_name, volume_ids,
    volume_name, volume_site,
};
use crate::rxafs::BenchError;

/// The layout that begins each row.
const LAYOUT: u32 = 1;
/// Groups that a user may create.
const QUOTA: u32 = 20;

type Row = (String, Bytes, Bytes);

/// Adds the volumes and users to the export `base` of a new cell. Returns the number of rows.
pub(super) fn write(
    base: &Path,
    export: &Path,
    volumes: u32,
    users: u32,
) -> Result<u64, BenchError> {
    let failed = |error: Error| BenchError::Io(io::Error::other(error));
    let mut rows = Rows::default();
    let mut used = false;
    let summary = read_export(base, |table, key, value| {
        used |= table == "vl.entry";
        if table != "vl.meta" && table != "pr.meta" {
            rows.0.push((table.to_owned(), key, value));
        }
    })
    .map_err(failed)?;
    let id = summary.id.filter(|_| !used);
    let id = id.ok_or_else(|| io::Error::other("the base is no export of a new cell"))?;
    rows.volumes(volumes);
    rows.users(users);
    let mut rows = rows.0;
    rows.sort_unstable();
    let shown = rows
        .iter()
        .map(|(table, key, value)| (table.as_str(), &key[..], &value[..]));
    export_rows(export, id, Revision(summary.revision + 1), shown).map_err(failed)
}

#[derive(Default)]
struct Rows(Vec<Row>);

impl Rows {
    fn put(&mut self, table: &str, key: impl Into<Bytes>, value: impl Into<Bytes>) {
        self.0.push((table.to_owned(), key.into(), value.into()));
    }

    fn volumes(&mut self, volumes: u32) {
        for server in 0..SERVERS {
            let value = xdr(|out| {
                AfsUuid::NIL.encode_to(out);
                words(out, &[0, 1, FIRST_SERVER + server]);
            });
            self.put("vl.server", vec![server as u8], value);
        }
        for number in 0..volumes {
            let entry = number_key(number + 1);
            let (server, partition) = volume_site(number);
            let name = volume_name(number);
            let ids = volume_ids(number);
            let value = xdr(|out| {
                EntryName::new(name.as_bytes())
                    .unwrap_or_default()
                    .encode_to(out);
                words(out, &ids);
                // The clone's id, the flags, time and id of the lock, and one site.
                let site = u32::from_be_bytes([0, server, partition, VLSF_RWVOL as u8]);
                words(out, &[0, VLF_RWEXISTS, 0, 0, 1, site]);
            });
            for (kind, id) in (0_u8..).zip(ids) {
                let key = [&[kind][..], &id.to_be_bytes()].concat();
                self.put("vl.id", key, entry.clone());
            }
            self.put("vl.name", name.into_bytes(), entry.clone());
            self.put("vl.entry", entry, value);
        }
        let reserved = number_key(volume_ids(volumes)[0]);
        self.put("vl.meta", "max_volume_id", reserved);
        self.put("vl.meta", "next_entry", number_key(volumes + 1));
    }

    fn users(&mut self, users: u32) {
        let count = groups(users);
        for group in 0..count {
            self.principal(group_id(group), &group_name(group));
            let owned = pair(ViceId::ADMINISTRATORS.0, group_id(group));
            self.put("pr.owned", owned, "");
        }
        for user in 0..users {
            self.principal(user_id(user), &user_name(user));
            for group in groups_of(user, count).map(group_id) {
                self.put("pr.member", pair(group, user_id(user)), "");
                self.put("pr.group", pair(user_id(user), group), "");
            }
        }
        let last = |id: i32| number_key(id as u32);
        self.put("pr.meta", "max_user", last(user_id(users - 1)));
        self.put("pr.meta", "max_group", last(group_id(count - 1)));
    }

    fn principal(&mut self, id: i32, name: &str) {
        let (flags, quota) = if id < 0 { (PRGRP, 0) } else { (PRQUOTA, QUOTA) };
        let owner = ViceId::ADMINISTRATORS.0 as u32;
        let value = xdr(|out| {
            // No cell's group; owner and creator; both quotas; both times.
            let fields = [flags, id as u32, 0, owner, owner, quota, quota, 0, 0];
            words(out, &fields);
            PrName::new(name.as_bytes())
                .unwrap_or_default()
                .encode_to(out);
        });
        self.put("pr.name", name.as_bytes().to_vec(), number_key(place(id)));
        self.put("pr.entry", number_key(place(id)), value);
    }
}

/// The place of an id: users from 1 upwards, then groups from -1 downwards.
fn place(id: i32) -> u32 {
    if id < 0 {
        0x8000_0000 + !id as u32
    } else {
        id as u32
    }
}

fn pair(first: i32, second: i32) -> Vec<u8> {
    [place(first).to_be_bytes(), place(second).to_be_bytes()].concat()
}

fn number_key(number: u32) -> Bytes {
    Bytes::copy_from_slice(&number.to_be_bytes())
}

fn xdr(write: impl FnOnce(&mut BytesMut)) -> Bytes {
    let mut out = BytesMut::with_capacity(512);
    LAYOUT.encode_to(&mut out);
    write(&mut out);
    Bytes::copy_from_slice(&out)
}

fn words(out: &mut BytesMut, words: &[u32]) {
    for word in words {
        word.encode_to(out);
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use cellar_celldb::{CellDb, Embedded, export, import};
    use cellar_dbserver::{Identity, Pr, Vl};
    use cellar_wire::vl::{ANYVOL, CreateEntryN, GetEntryByIDN, GetEntryByNameN};
    use cellar_wire::{AfsTime, VolumeId, pr};

    use super::*;

    const ADMIN: Identity = Identity::Superuser;

    fn open(path: &Path) -> (Vl, Pr) {
        let db: Arc<dyn CellDb> = Arc::new(Embedded::open(path).unwrap());
        let vl = Vl::open(db.clone(), Arc::new(|| AfsTime(5))).unwrap();
        let pr = Pr::open(db, Arc::new(|| AfsTime(5)), "test.cell").unwrap();
        (vl, pr)
    }

    #[test]
    fn the_servers_find_the_imported_entries() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        drop(open(&at("new")));
        export(&at("new"), &at("base")).unwrap();
        super::write(&at("base"), &at("full"), 2000, 300).unwrap();
        import(&at("full"), &at("db")).unwrap();
        let (vl, pr) = open(&at("db"));
        for number in [0, 1234, 1999] {
            let ids = volume_ids(number).map(VolumeId);
            let lookup = GetEntryByNameN {
                volumename: volume_name(number).into_bytes().try_into().unwrap(),
            };
            let entry = vl.ask(ADMIN, lookup).unwrap().entry;
            assert_eq!(entry.volume_ids, ids);
            let server = FIRST_SERVER + u32::from(volume_site(number).0);
            assert_eq!(entry.sites[0].server, server);
            let lookup = GetEntryByIDN {
                volid: ids[2],
                voltype: ANYVOL,
            };
            assert_eq!(vl.ask(ADMIN, lookup).unwrap().entry, entry);
        }
        let lookup = GetEntryByNameN {
            volumename: volume_name(7).into_bytes().try_into().unwrap(),
        };
        let mut newentry = vl.ask(ADMIN, lookup).unwrap().entry;
        newentry.name = EntryName::new(b"new").unwrap();
        newentry.volume_ids = [VolumeId(0x4000_0000), VolumeId(0), VolumeId(0)];
        vl.ask(ADMIN, CreateEntryN { newentry }).unwrap();

        let id = ViceId(user_id(299));
        let cps = pr.ask(ADMIN, pr::GetCPS { id }).unwrap().list;
        for group in groups_of(299, groups(300)) {
            assert!(cps.contains(&ViceId(group_id(group))));
        }
        let new = pr::NewEntry {
            name: "new".try_into().unwrap(),
            flag: 0,
            owner: ViceId(0),
        };
        let new = pr.ask(ADMIN, new).unwrap().id;
        assert_eq!(new, ViceId(user_id(300)));
    }

    #[test]
    fn a_base_with_volumes_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        drop(open(&at("new")));
        export(&at("new"), &at("base")).unwrap();
        super::write(&at("base"), &at("full"), 1, 1).unwrap();
        assert!(super::write(&at("full"), &at("fuller"), 1, 1).is_err());
    }
}
