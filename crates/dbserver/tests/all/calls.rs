//! VL, PR, VOTE and DISK over Rx and over the socket of the local administrator.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use cellar_auth::Authority;
use cellar_auth::audit::Audit;
use cellar_celldb::{CellDb, Embedded};
use cellar_dbserver::{Clock, DiskService, Pr, PrService, Vl, VlService, VoteService};
use cellar_rpc::{
    CallError, CallOptions, Connection, PortConfig, Runtime, RuntimeConfig, Security, Service,
    local,
};
use cellar_until::until_some;
use cellar_wire::vl::{
    CreateEntryN, GetEntryByNameU, LinkedList, LinkedListN, ListAttributes, ListAttributesN,
    NvldbEntry, Site, VLF_RWEXISTS, VLSF_RWVOL, VldbListByAttributes,
};
use cellar_wire::{
    AbortCode, AfsTime, List, Package, Procedure, ViceId, VolumeId, disk, pr, vl, vote,
};

struct Servers {
    runtime: Runtime,
    address: SocketAddr,
    local: local::Listener,
    directory: tempfile::TempDir,
}

/// Starts the servers; with `guarded`, they have superusers and write an audit log to `audit`.
fn serve(guarded: bool) -> Servers {
    let directory = tempfile::tempdir().unwrap();
    let open = |name| -> Arc<dyn CellDb> {
        Arc::new(Embedded::open(&directory.path().join(name)).unwrap())
    };
    let clock: Clock = Arc::new(|| AfsTime(1_000_000));
    let vl = Arc::new(Vl::open(open("vl"), clock.clone()).unwrap());
    let pr = Arc::new(Pr::open(open("pr"), clock.clone(), "test.cell").unwrap());
    let (mut vl_service, mut pr_service) = (VlService::new(vl.clone()), PrService::new(pr));
    if guarded {
        let authority = Authority::open(directory.path(), "test.cell").unwrap();
        let audit = Audit::open(&directory.path().join("audit")).unwrap();
        vl_service = vl_service.with_authority(authority.clone(), audit.clone());
        pr_service = pr_service.with_authority(authority, audit);
    }
    let services: Vec<Arc<dyn Service>> = vec![
        Arc::new(vl_service),
        Arc::new(pr_service),
        Arc::new(VoteService::new(vl, clock, vec![0x7f00_0001])),
        Arc::new(DiskService),
    ];
    let runtime = Runtime::start(RuntimeConfig::default()).unwrap();
    let port = PortConfig::new(SocketAddr::from(([127, 0, 0, 1], 0)));
    let port = services
        .iter()
        .fold(port, |port, service| port.service(service.clone()));
    let address = runtime.open(port).unwrap().local_address();
    let local = local::Listener::bind(&runtime, directory.path().join("admin"), services).unwrap();
    Servers {
        runtime,
        address,
        local,
        directory,
    }
}

impl Servers {
    fn connect(&self, package: &Package) -> Connection {
        self.runtime
            .connect(self.address, package.service_id, Security::null())
            .unwrap()
    }
}

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let patience = std::time::Duration::from_secs(60);
    runtime.block_on(async { tokio::time::timeout(patience, test).await.unwrap() });
}

async fn raw(connection: &Connection, package: &'static Package, words: &[u32]) -> AbortCode {
    let request: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
    let call = connection.open_raw(package, Bytes::from(request), CallOptions::default());
    let mut call = call.unwrap();
    call.finish();
    loop {
        match call.read_chunk().await {
            Ok(Some(_)) => {}
            Ok(None) => return AbortCode(0),
            Err(failure) => return failure.code(),
        }
    }
}

fn volume(n: u32) -> NvldbEntry {
    NvldbEntry {
        name: format!("volume.{n}").as_str().try_into().unwrap(),
        sites: List::from_iter_cut([Site {
            server: 0x0a00_0001,
            partition: 0,
            flags: VLSF_RWVOL,
        }]),
        volume_ids: [n * 3 + 1, n * 3 + 2, n * 3 + 3].map(VolumeId),
        clone_id: VolumeId(0),
        flags: VLF_RWEXISTS,
        match_index: 0,
    }
}

#[test]
fn every_opcode_answers_or_is_refused_with_its_code() {
    run(async {
        let servers = serve(false);
        for package in [&vl::PACKAGE, &pr::PACKAGE, &vote::PACKAGE, &disk::PACKAGE] {
            let connection = servers.connect(package);
            for procedure in package.procedures {
                // The calls have no arguments, so most do not parse. Procedures without arguments
                // succeed. Calls of DISK have enough zeros for all arguments.
                let mut words = vec![procedure.opcode];
                if package.name == "DISK" {
                    words.resize(300, 0);
                }
                let code = raw(&connection, package, &words).await;
                let name = procedure.name;
                match name {
                    "CreateEntryU" | "GetEntryByIDU" | "ReplaceEntryU" | "ListEntryU"
                    | "ListAttributesU" | "LinkedListU" => {
                        assert_eq!(code, AbortCode::RXGEN_OPCODE, "{name}");
                    }
                    "GetStats" | "ProbeServer" | "GetCapabilities" | "ListMax" | "Debug"
                    | "DebugOld" | "XDebug" | "Probe" => {
                        assert_eq!(code, AbortCode(0), "{name}");
                    }
                    "GetVersion" => assert_eq!(code, AbortCode::UDEADLOCK),
                    _ if package.name == "DISK" => assert_eq!(code, AbortCode::USYNC, "{name}"),
                    _ => assert_eq!(code, AbortCode::RXGEN_SS_UNMARSHAL, "{name}"),
                }
            }
            assert_eq!(
                raw(&connection, package, &[77]).await,
                AbortCode::RXGEN_OPCODE
            );
            assert_eq!(
                raw(&connection, package, &[]).await,
                AbortCode::RXGEN_DECODE
            );
        }
        // A list with a length above the limit of the interface.
        let connection = servers.connect(&pr::PACKAGE);
        let absurd = [pr::NameToID::OPCODE, 0xffff_ffff, 0, 0];
        assert_eq!(
            raw(&connection, &pr::PACKAGE, &absurd).await,
            AbortCode::RXGEN_SS_UNMARSHAL
        );
        let negative = [pr::IDToName::OPCODE, 0x8000_0000];
        assert_eq!(
            raw(&connection, &pr::PACKAGE, &negative).await,
            AbortCode::RXGEN_SS_UNMARSHAL
        );
    });
}

#[test]
fn the_local_administrator_writes_and_anybody_reads() {
    run(async {
        let servers = serve(false);
        assert!(servers.directory.path().join("admin").exists());
        let admin = local::connect(servers.local.path()).await.unwrap();
        let anybody = servers.connect(&vl::PACKAGE);
        let newentry = volume(1);
        let refused = anybody
            .call(&CreateEntryN {
                newentry: newentry.clone(),
            })
            .await;
        assert!(matches!(
            refused,
            Err(CallError::Aborted(AbortCode::VL_PERM))
        ));
        admin
            .call(&CreateEntryN {
                newentry: newentry.clone(),
            })
            .await
            .unwrap();
        let volumename = newentry.name.as_bytes().try_into().unwrap();
        let found = anybody
            .call(&GetEntryByNameU { volumename })
            .await
            .unwrap()
            .entry;
        assert_eq!(found.volume_ids, newentry.volume_ids);

        let anybody = servers.connect(&pr::PACKAGE);
        let new = |name: &str| pr::NewEntry {
            name: name.try_into().unwrap(),
            flag: 0,
            owner: ViceId(0),
        };
        let refused = anybody.call(&new("jane")).await;
        assert!(matches!(
            refused,
            Err(CallError::Aborted(AbortCode::PRPERM))
        ));
        assert_eq!(admin.call(&new("jane")).await.unwrap().id, ViceId(1));
        let names = List::from_iter_cut(["jane".try_into().unwrap()]);
        let reply = anybody.call(&pr::NameToID { names }).await.unwrap();
        assert_eq!(reply.ids.into_vec(), [ViceId(1)]);
    });
}

#[test]
fn long_listings_are_streamed_whole() {
    run(async {
        let servers = serve(false);
        let admin = local::connect(servers.local.path()).await.unwrap();
        for n in 0..300 {
            admin
                .call(&CreateEntryN {
                    newentry: volume(n),
                })
                .await
                .unwrap();
        }
        let anybody = servers.connect(&vl::PACKAGE);
        let attributes = VldbListByAttributes::default();
        let n = anybody.call(&ListAttributesN { attributes }).await.unwrap();
        let linked = anybody.call(&LinkedListN { attributes }).await.unwrap();
        let old = anybody.call(&ListAttributes { attributes }).await.unwrap();
        let old_linked = anybody.call(&LinkedList { attributes }).await.unwrap();
        assert_eq!((n.nentries, linked.nentries), (300, 300));
        assert_eq!((old.nentries, old_linked.nentries), (300, 300));
        let expected: Vec<NvldbEntry> = (0..300).map(volume).collect();
        assert_eq!(n.blkentries.into_vec(), expected);
        assert_eq!(linked.linkedentries.0.into_vec(), expected);
        let expected: Vec<_> = expected.iter().map(NvldbEntry::to_old).collect();
        assert_eq!(old.blkentries.into_vec(), expected);
        assert_eq!(old_linked.linkedentries.0.into_vec(), expected);
        let none = VldbListByAttributes {
            mask: 8,
            volumeid: VolumeId(99_999),
            ..attributes
        };
        let refused = anybody.call(&ListAttributesN { attributes: none }).await;
        assert!(matches!(
            refused,
            Err(CallError::Aborted(AbortCode::VL_NOENT))
        ));
    });
}

#[test]
fn many_clients_at_once_get_their_own_answers() {
    run(async {
        let servers = serve(false);
        let admin = local::connect(servers.local.path()).await.unwrap();
        for n in 0..50 {
            admin
                .call(&CreateEntryN {
                    newentry: volume(n),
                })
                .await
                .unwrap();
        }
        let tasks: Vec<_> = (0..8u32)
            .map(|client| {
                let connection = servers.connect(&vl::PACKAGE);
                tokio::spawn(async move {
                    for turn in 0..100 {
                        let new = volume((client * 13 + turn) % 50);
                        let volumename = new.name.as_bytes().try_into().unwrap();
                        let reply = connection.call(&GetEntryByNameU { volumename }).await;
                        assert_eq!(reply.unwrap().entry.volume_ids, new.volume_ids);
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
    });
}

#[test]
fn the_owner_of_a_lock_is_written_down_however_it_locks() {
    run(async {
        let servers = serve(false);
        let admin = local::connect(servers.local.path()).await.unwrap();
        let newentry = volume(1);
        admin.call(&CreateEntryN { newentry }).await.unwrap();
        let (volid, voltype) = (VolumeId(4), vl::ANYVOL);
        let noted = vl::LockNoted {
            volid,
            voltype,
            voloper: vl::VLOP_RELEASE as i32,
            note: "release, process 17 on ws1".try_into().unwrap(),
        };
        let plain = vl::SetLock {
            volid,
            voltype,
            voloper: vl::VLOP_MOVE as i32,
        };
        let anybody = servers.connect(&vl::PACKAGE);
        for refused in [
            anybody.call(&noted).await.map(drop),
            anybody.call(&plain).await.map(drop),
        ] {
            assert_eq!(refused.unwrap_err().code(), AbortCode::VL_PERM);
        }
        for note in [Some(&noted.note), None] {
            match note {
                Some(_) => drop(admin.call(&noted).await.unwrap()),
                None => drop(admin.call(&plain).await.unwrap()),
            }
            let look = vl::GetLock { volid, voltype };
            let seen = admin.call(&look).await.unwrap();
            assert_eq!(seen.since, AfsTime(1_000_000));
            assert_eq!(seen.who.to_string(), "local administrator");
            // The new lock is from the same second, but must not show the earlier lock's note.
            assert_eq!(seen.note, note.cloned().unwrap_or_default());
            let release = vl::ReleaseLock {
                volid,
                voltype,
                releasetype: 7,
            };
            admin.call(&release).await.unwrap();
            assert_eq!(admin.call(&look).await.unwrap().since, AfsTime(0));
        }
    });
}

#[test]
fn acts_and_attempts_are_in_the_audit_log() {
    run(async {
        let servers = serve(true);
        let admin = local::connect(servers.local.path()).await.unwrap();
        let anybody = servers.connect(&vl::PACKAGE);
        let asked = CreateEntryN {
            newentry: volume(1),
        };
        anybody.call(&asked).await.unwrap_err();
        admin.call(&asked).await.unwrap();
        let made = pr::NewEntry {
            name: "jane".try_into().unwrap(),
            flag: 0,
            owner: ViceId(0),
        };
        admin.call(&made).await.unwrap();
        // Reads are not recorded.
        let seen = pr::ListEntry { id: ViceId(1) };
        servers.connect(&pr::PACKAGE).call(&seen).await.unwrap();
        let path = servers.directory.path().join("audit");
        // A separate thread writes the log.
        let lines = until_some("three acts", async || {
            let text = std::fs::read_to_string(&path).unwrap();
            let lines: Vec<String> = text.lines().map(str::to_owned).collect();
            (lines.len() >= 3).then_some(lines)
        });
        let lines = lines.await;
        assert_eq!(lines.len(), 3);
        let has = |line: &str, parts: &[&str]| {
            for part in parts {
                assert!(line.contains(part), "{part} is not in {line}");
            }
        };
        let refused = AbortCode::VL_PERM.0.to_string();
        has(
            &lines[0],
            &[
                "VL_CreateEntryN",
                "anonymous",
                "127.0.0.1",
                "false",
                &refused,
            ],
        );
        has(
            &lines[1],
            &["VL_CreateEntryN", "local administrator", "volume.1", "true"],
        );
        has(&lines[2], &["PR_NewEntry", "jane", "\"peer\":null"]);
        let details = |line: &str| -> serde_json::Value {
            let record: serde_json::Value = serde_json::from_str(line).unwrap();
            record["details"].clone()
        };
        let entry = &details(&lines[1])["newentry"];
        assert_eq!(entry["name"], "volume.1");
        let server = entry["sites"][0]["server"].as_str().unwrap();
        assert!(server.parse::<std::net::Ipv4Addr>().is_ok(), "{server}");
        let jane = serde_json::json!({ "name": "jane", "flag": 0, "owner": 0 });
        assert_eq!(details(&lines[2]), jane);
    });
}
