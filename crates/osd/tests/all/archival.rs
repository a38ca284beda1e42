//! A device whose objects are copies in an archive: a directory.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::common::{body, capability_for, clock, id, pattern, read, write};
use cellar_auth::capability::CapabilityKeys;
use cellar_auth::{Authority, Enctype, SecretKey};
use cellar_osd::{ArchivalDevice, Config, OpenError, OsdServer, Place};
use cellar_rpc::{CallError, Connection, PortConfig, Runtime, RuntimeConfig, Security};
use cellar_wire::object::{Capability, MAY_ALL};
use cellar_wire::osd::{
    self, Checksum, Examine, GetSpace, LIST_REMOVED, ListObjects, Needed, Prune, REMOVE_HARD,
    REMOVE_SOFT, Remove, SUM_CRC32C, SUM_MD5, Truncate, Undelete,
};
use cellar_wire::{AbortCode, List};
use md5::{Digest, Md5};

const DEVICE: u32 = 9;
const CELL: &str = "example.org";

/// The directories of a test.
struct Directories {
    directory: tempfile::TempDir,
}

impl Directories {
    fn new() -> Self {
        Self {
            directory: tempfile::tempdir().unwrap(),
        }
    }

    fn device(&self) -> PathBuf {
        let path = self.directory.path().join("osd9");
        fs::create_dir_all(&path).unwrap();
        path
    }

    fn tape(&self) -> PathBuf {
        self.directory.path().join("tape")
    }

    fn place(&self) -> Place {
        self.tape().to_str().unwrap().parse().unwrap()
    }

    fn open(&self) -> Result<ArchivalDevice, OpenError> {
        ArchivalDevice::open(&self.device(), CELL, Some(&self.place()), 1000)
    }

    /// The files with the bytes of copies.
    fn copies(&self) -> Vec<PathBuf> {
        fn below(path: &Path, found: &mut Vec<PathBuf>) {
            for entry in fs::read_dir(path).into_iter().flatten().flatten() {
                match entry.path().is_dir() {
                    true => below(&entry.path(), found),
                    false => found.push(entry.path()),
                }
            }
        }
        let mut found = Vec::new();
        below(&self.tape().join("objects"), &mut found);
        found
    }

    /// Runs a test with a server of the device, and stops it.
    fn run(&self, test: impl AsyncFnOnce(&Connection, &Capability)) {
        let etc = self.directory.path().join("etc");
        fs::create_dir_all(&etc).unwrap();
        let authority = Authority::open(&etc, CELL).unwrap();
        let key = SecretKey::new(Enctype::Aes256Sha1, &[7; 32]).unwrap();
        let _known = authority.keys().add(1, &key);
        let open_keys = || CapabilityKeys::open(&etc, &authority).unwrap();
        let config = Config::new(authority.clone(), Arc::new(open_keys()), clock);
        let server = OsdServer::new(config, vec![(DEVICE, self.open().unwrap())]);
        let runtime = Runtime::start(RuntimeConfig {
            shards: 1,
            ..RuntimeConfig::default()
        })
        .unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let port = runtime
            .open(PortConfig::new(address).service(server.service()))
            .unwrap();
        server.start(&runtime, &port);
        let service = osd::PACKAGE.service_id;
        let connection = runtime
            .connect(port.local_address(), service, Security::null())
            .unwrap();
        let all = capability_for(&open_keys(), &body(DEVICE, Default::default(), MAY_ALL));
        let threads = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        threads.unwrap().block_on(test(&connection, &all));
        runtime.shutdown();
        server.stop().unwrap();
    }
}

fn code<T: std::fmt::Debug>(outcome: Result<T, CallError>) -> AbortCode {
    outcome.unwrap_err().code()
}

async fn list(connection: &Connection, all: &Capability, flags: u32) -> Vec<u32> {
    let mut after = Default::default();
    let mut found = Vec::new();
    loop {
        let asked = ListObjects {
            capability: all.clone(),
            volume: 0,
            after,
            limit: 2,
            flags,
        };
        let page = connection.call(&asked).await.unwrap();
        found.extend(page.objects.iter().map(|info| info.object.serial));
        match page.objects.last() {
            Some(last) if page.more => after = last.object,
            _ => return found,
        }
    }
}

#[test]
fn a_copy_is_written_once_and_read_whole_also_after_a_restart() {
    let place = Directories::new();
    let bytes = pattern(3_000_000, 1);
    place.run(async |osd, all| {
        write(osd, all, id(1), (0, 5), 0, &bytes).await.unwrap();
        write(osd, all, id(2), (0, 5), 0, b"").await.unwrap();
        write(osd, all, id(1), (0, 5), 0, &bytes).await.unwrap();
        assert_eq!(place.copies().len(), 2);
        // Never rewritten: other bytes, a part, a version made from another.
        let other = write(osd, all, id(1), (0, 5), 0, &pattern(3_000_000, 2)).await;
        assert_eq!(code(other), AbortCode::EEXIST);
        for (base, position) in [(5, 0), (0, 10)] {
            let refused = write(osd, all, id(3), (base, 6), position, b"part").await;
            assert_eq!(code(refused), AbortCode::EOPNOTSUPP);
        }
        let cut = Truncate {
            capability: all.clone(),
            object: id(1),
            base: 0,
            version: 5,
            length: 1,
        };
        assert_eq!(code(osd.call(&cut).await), AbortCode::EOPNOTSUPP);
    });
    place.run(async |osd, all| {
        assert_eq!(read(osd, all, id(1), 5, 0, 1 << 30).await.unwrap(), bytes);
        assert_eq!(read(osd, all, id(2), 5, 0, 1 << 30).await.unwrap(), b"");
        let part = read(osd, all, id(1), 5, 100, 10).await;
        assert_eq!(code(part), AbortCode::EOPNOTSUPP);
        let missing = read(osd, all, id(1), 6, 0, 1 << 30).await;
        assert_eq!(code(missing), AbortCode::ENOENT);
        let asked = Examine {
            capability: all.clone(),
            object: id(1),
        };
        let info = osd.call(&asked).await.unwrap().info;
        let versions: Vec<_> = info
            .versions
            .iter()
            .map(|v| (v.version, v.length))
            .collect();
        assert_eq!(versions, [(5, 3_000_000)]);
        let asked = Checksum {
            capability: all.clone(),
            object: id(1),
            version: 5,
            sums: SUM_MD5,
        };
        let sums = osd.call(&asked).await.unwrap();
        let words: Vec<u8> = sums
            .md5
            .iter()
            .flat_map(|word| word.to_be_bytes())
            .collect();
        assert_eq!(words, Md5::digest(&bytes).as_slice());
        let other = Checksum {
            sums: SUM_CRC32C,
            ..asked
        };
        assert_eq!(code(osd.call(&other).await), AbortCode::EOPNOTSUPP);
        let space = osd.call(&GetSpace {}).await.unwrap().devices[0];
        assert!(space.objects == 2 && space.free > 0, "{space:?}");
    });
}

#[test]
fn a_damaged_copy_and_a_lost_one_are_told_apart() {
    let place = Directories::new();
    let bytes = pattern(2_000_000, 3);
    place.run(async |osd, all| {
        write(osd, all, id(1), (0, 5), 0, &bytes).await.unwrap();
        let file = place.copies().pop().unwrap();
        let mut damaged = bytes.clone();
        damaged[1_999_999] ^= 1;
        fs::remove_file(&file).unwrap();
        fs::write(&file, &damaged).unwrap();
        let refused = read(osd, all, id(1), 5, 0, 1 << 30).await;
        assert_eq!(code(refused), AbortCode::EBADMSG);
        fs::remove_file(&file).unwrap();
        let refused = read(osd, all, id(1), 5, 0, 1 << 30).await;
        assert_eq!(code(refused), AbortCode::ENOENT);
        let asked = Examine {
            capability: all.clone(),
            object: id(1),
        };
        assert_eq!(code(osd.call(&asked).await), AbortCode::ENOENT);
        // The whole archive is gone: not one copy is called lost.
        let away = place.tape().with_extension("away");
        fs::rename(place.tape(), &away).unwrap();
        let refused = read(osd, all, id(1), 5, 0, 1 << 30).await;
        assert_eq!(code(refused), AbortCode::EIO);
        let refused = write(osd, all, id(2), (0, 5), 0, &bytes).await;
        assert_eq!(code(refused), AbortCode::EIO);
        assert!(
            !place.tape().exists(),
            "nothing is written below a missing mount"
        );
        assert_eq!(osd.call(&GetSpace {}).await.unwrap().devices[0].free, 0);
        fs::rename(&away, place.tape()).unwrap();
        write(osd, all, id(2), (0, 5), 0, &bytes).await.unwrap();
        assert!(osd.call(&GetSpace {}).await.unwrap().devices[0].free > 0);
    });
}

#[test]
fn removed_copies_stay_until_the_retention_is_over() {
    let place = Directories::new();
    place.run(async |osd, all| {
        for serial in 1..=5 {
            let bytes = pattern(100_000, serial as u8);
            write(osd, all, id(serial), (0, 5), 0, &bytes)
                .await
                .unwrap();
        }
        let remove = |serials: &[u32], flags| Remove {
            capability: all.clone(),
            objects: List::from_iter_cut(serials.iter().map(|serial| id(*serial))),
            flags,
        };
        let removed = osd.call(&remove(&[1, 2, 77], REMOVE_SOFT)).await.unwrap();
        assert_eq!((removed.removed, place.copies().len()), (2, 5));
        assert_eq!(list(osd, all, 0).await, [3, 4, 5]);
        assert_eq!(list(osd, all, LIST_REMOVED).await, [1, 2]);
        let refused = read(osd, all, id(1), 5, 0, 1 << 30).await;
        assert_eq!(code(refused), AbortCode::ENOENT);
        let back = Undelete {
            capability: all.clone(),
            objects: List::from_iter_cut([id(2)]),
        };
        assert_eq!(osd.call(&back).await.unwrap().restored, 1);
        let whole = read(osd, all, id(2), 5, 0, 1 << 30).await.unwrap();
        assert_eq!(whole, pattern(100_000, 2));
        let purge = osd::Purge {
            capability: all.clone(),
            before: clock().as_secs() + 10,
        };
        assert_eq!(osd.call(&purge).await.unwrap().purged, 1);
        assert_eq!(place.copies().len(), 4);
        osd.call(&remove(&[3], REMOVE_HARD)).await.unwrap();
        assert_eq!(
            (place.copies().len(), list(osd, all, 0).await),
            (3, vec![2, 4, 5])
        );
        let needed = |serial: u32, keep: &[u64]| Needed {
            object: id(serial),
            keep: List::from_iter_cut(keep.iter().copied()),
            below: 6,
        };
        let prune = Prune {
            capability: all.clone(),
            needed: List::from_iter_cut([needed(4, &[5]), needed(5, &[])]),
        };
        assert_eq!(osd.call(&prune).await.unwrap().freed, 100_000);
        assert_eq!(list(osd, all, 0).await, [2, 4]);
    });
}

#[test]
fn an_archive_of_others_and_one_that_lost_its_copies_are_refused() {
    let place = Directories::new();
    place.run(async |osd, all| {
        write(osd, all, id(1), (0, 5), 0, b"bytes").await.unwrap();
    });
    let refused = |opened: Result<ArchivalDevice, OpenError>, said: &str| {
        let told = opened.unwrap_err().to_string();
        assert!(told.contains(said), "{told:?} lacks {said:?}");
    };
    // Another device may not take it over, of this cell or of another.
    let other = place.directory.path().join("osd10");
    fs::create_dir_all(&other).unwrap();
    for cell in [CELL, "other.org"] {
        let taken = ArchivalDevice::open(&other, cell, Some(&place.place()), 1000);
        refused(taken, "cannot be created here");
    }
    let elsewhere: Place = "/somewhere/else".parse().unwrap();
    let moved = ArchivalDevice::open(&place.device(), CELL, Some(&elsewhere), 1000);
    refused(moved, "not /somewhere/else");
    let foreign = ArchivalDevice::open(&place.device(), "other.org", None, 1000);
    refused(foreign, "belongs to cell");
    // Its file system is not mounted, or is empty.
    fs::rename(place.tape(), place.tape().with_extension("away")).unwrap();
    refused(place.open(), "is it mounted?");
    fs::create_dir(place.tape()).unwrap();
    refused(place.open(), "has been used and is empty now");
    assert_eq!(
        fs::read_dir(place.tape()).unwrap().count(),
        0,
        "nothing is written"
    );
}
