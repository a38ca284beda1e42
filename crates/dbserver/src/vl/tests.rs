//! Tests of every VL procedure and refusal, and random sequences compared with a simple model.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use cellar_celldb::Embedded;
use cellar_rpc::Caller;
use cellar_wire::vl::*;
use cellar_wire::{AfsTime, AfsUuid, List, Procedure, VolumeId};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::*;
use crate::Origin;
use crate::guard::Guard;

mod entries;
mod listings;
mod sequences;
mod servers;

const ADMIN: Identity = Identity::Superuser;
const ANYONE: Identity = Identity::ANONYMOUS;
const A: u32 = 0x0a00_0001;
const B: u32 = 0x0a00_0002;

struct Cell {
    _dir: tempfile::TempDir,
    db: Arc<dyn CellDb>,
    vl: Vl,
    now: Arc<AtomicU32>,
}

fn cell() -> Cell {
    let dir = tempfile::tempdir().unwrap();
    let db: Arc<dyn CellDb> = Arc::new(Embedded::open(&dir.path().join("db")).unwrap());
    let now = Arc::new(AtomicU32::new(1000));
    let clock = Arc::clone(&now);
    let clock: Clock = Arc::new(move || AfsTime(clock.load(Ordering::Relaxed)));
    let vl = Vl::open(Arc::clone(&db), clock).unwrap();
    Cell {
        _dir: dir,
        db,
        vl,
        now,
    }
}

fn site(server: u32, partition: i32, flags: u32) -> Site {
    Site {
        server,
        partition,
        flags,
    }
}

fn volume(name: &str, id: u32) -> NvldbEntry {
    NvldbEntry {
        name: name.try_into().unwrap(),
        sites: List::from_iter_cut([site(A, 0, VLSF_RWVOL)]),
        volume_ids: [VolumeId(id), VolumeId(id + 1), VolumeId(id + 2)],
        clone_id: VolumeId(0),
        flags: VLF_RWEXISTS,
        match_index: 0,
    }
}

impl Cell {
    fn ask<P: Answer<Vl>>(&self, arguments: P) -> Result<P::Reply, AbortCode> {
        self.vl.ask(ADMIN, arguments)
    }

    fn create(&self, entry: NvldbEntry) -> Result<(), AbortCode> {
        self.ask(CreateEntryN { newentry: entry }).map(drop)
    }

    fn get(&self, name: &str) -> Result<NvldbEntry, AbortCode> {
        let volumename = name.try_into().unwrap();
        self.vl
            .ask(ANYONE, GetEntryByNameN { volumename })
            .map(|reply| reply.entry)
    }

    fn get_u(&self, name: &str) -> UvldbEntry {
        let volumename = name.try_into().unwrap();
        self.vl
            .ask(ANYONE, GetEntryByNameU { volumename })
            .unwrap()
            .entry
    }

    fn by_id(&self, id: u32, voltype: i32) -> Result<NvldbEntry, AbortCode> {
        let asked = GetEntryByIDN {
            volid: VolumeId(id),
            voltype,
        };
        self.vl.ask(ANYONE, asked).map(|reply| reply.entry)
    }

    fn replace(&self, id: u32, entry: NvldbEntry, releasetype: i32) -> Result<(), AbortCode> {
        let (volid, voltype) = (VolumeId(id), -1);
        self.ask(ReplaceEntryN {
            volid,
            voltype,
            newentry: entry,
            releasetype,
        })
        .map(drop)
    }

    fn lock(&self, id: u32, voloper: u32) -> Result<(), AbortCode> {
        let voloper = voloper as i32;
        self.ask(SetLock {
            volid: VolumeId(id),
            voltype: -1,
            voloper,
        })
        .map(drop)
    }

    fn register(&self, uuid: u8, addresses: &[u32]) -> Result<(), AbortCode> {
        let addrs = List::try_from(addresses).unwrap();
        self.ask(RegisterAddrs {
            uuid: AfsUuid([uuid; 16]),
            spare1: 0,
            addrs,
        })
        .map(drop)
    }

    fn addrs_u(&self, mask: u32, value: u32) -> Result<(u8, i32, Vec<u32>), AbortCode> {
        let attributes = ListAddrByAttributes {
            mask,
            ipaddr: value,
            index: value as i32,
            spare1: 0,
            uuid: AfsUuid([value as u8; 16]),
        };
        let reply = self.vl.ask(ANYONE, GetAddrsU { attributes })?;
        assert_eq!(reply.nentries as usize, reply.blkaddrs.len());
        Ok((reply.uuid.0[0], reply.uniquifier, reply.blkaddrs.into_vec()))
    }

    fn list(
        &self,
        who: Identity,
        attributes: VldbListByAttributes,
        pattern: &str,
    ) -> Result<Vec<(String, u32)>, AbortCode> {
        let (mut listed, mut startindex) = (Vec::new(), 0);
        loop {
            let volumename = pattern.try_into().unwrap();
            let asked = ListAttributesN2 {
                attributes,
                volumename,
                startindex,
            };
            let reply = self.vl.ask(who, asked)?;
            assert_eq!(reply.nentries as usize, reply.blkentries.len());
            assert!(reply.nentries as usize <= limits::PAGE_ENTRIES);
            listed.extend(
                reply
                    .blkentries
                    .iter()
                    .map(|e| (e.name.to_string(), e.match_index)),
            );
            startindex = reply.nextindex;
            if startindex == -1 {
                return Ok(listed);
            }
        }
    }

    fn gather(&self, attributes: VldbListByAttributes) -> Vec<String> {
        self.vl
            .gather(&attributes)
            .unwrap()
            .iter()
            .map(|entry| entry.name.to_string())
            .collect()
    }

    /// Loads a second model and compares it and all three tables with the one in use.
    fn check(&self) {
        let fresh = Vl::open(Arc::clone(&self.db), Arc::clone(&self.vl.clock)).unwrap();
        let (fresh, used) = (fresh.replica.read(), self.vl.replica.read());
        let all = fresh.after(0, usize::MAX);
        assert_eq!(all, used.after(0, usize::MAX));
        assert_eq!(
            fresh.servers().collect::<Vec<_>>(),
            used.servers().collect::<Vec<_>>()
        );
        assert_eq!(fresh.max_volume_id(), used.max_volume_id());
        let mut counts = (0, [0; 3]);
        for entry in &all {
            counts.0 += 1;
            assert_eq!(used.by_name(&entry.name).unwrap(), entry);
            for voltype in 0..3 {
                let id = entry.ids[voltype];
                if id.0 != 0 {
                    counts.1[voltype] += 1;
                    assert_eq!(used.by_id(id, voltype as i32).unwrap(), entry);
                }
            }
            for place in &entry.places {
                assert!(
                    used.server(usize::from(place.server)).is_some(),
                    "{entry:?}"
                );
            }
        }
        assert_eq!((used.len(), used.volumes_by_type()), counts);
        let everything = (Bound::Unbounded, Bound::Unbounded);
        let rows = |table| {
            let rows = self
                .db
                .read(|view, _| view.scan(table, everything, usize::MAX));
            rows.map(|rows: cellar_celldb::Rows| rows.len()).unwrap()
        };
        assert_eq!(rows(tables::NAME), counts.0);
        assert_eq!(rows(tables::ID), counts.1.iter().sum::<usize>());
    }
}
