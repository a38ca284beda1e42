//! `fs cleanacl` while the file server cannot reach the protection database and sends numbers for
//! all entries. Users and groups that the database knows must stay in the list.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::paper::World;
use cellar_admin::fs::Files;
use cellar_rpc::{IncomingCall, LocalBoxFuture, PortConfig, Runtime, RuntimeConfig, Service, only};
use cellar_wire::acl::Rights;
use cellar_wire::ids::{Uniquifier, ViceId, VnodeId};
use cellar_wire::rxafs::{self, AfsFetchStatus, FileType};
use cellar_wire::{AbortCode, AfsTime, Package, Procedure, pr};
use parking_lot::Mutex;

/// The file server's list of three entries. The ids -204 and 7 exist, 1234 was deleted.
const NUMBERS: &str = "2\n1\n-204\t127\n1234\t9\n7\t2\n";

/// The behaviour of the protection database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mood {
    Knows,
    KnowsAll,
    Silent,
    TooFew,
}

/// A simulated protection database that records its requests.
struct Names {
    mood: Mood,
    asked: Mutex<Vec<ViceId>>,
}

impl Names {
    fn answer(&self, asked: &pr::IDToName) -> Result<pr::IDToNameReply, AbortCode> {
        self.asked.lock().extend(asked.ids.iter().copied());
        if self.mood == Mood::Silent {
            return Err(AbortCode::RX_CALL_DEAD);
        }
        let name_of = |id: &ViceId| match (id.0, self.mood) {
            (-204, _) => "system:administrators".to_owned(),
            (7, _) => "ann".to_owned(),
            (1234, Mood::KnowsAll) => "bob".to_owned(),
            (id, _) => id.to_string(),
        };
        let skipped = usize::from(self.mood == Mood::TooFew);
        let names = asked.ids.iter().skip(skipped).map(name_of);
        let names = names.map(|name| pr::PrName::new(name.as_bytes()).unwrap());
        Ok(pr::IDToNameReply {
            names: pr::NameList::from_iter_cut(names),
        })
    }
}

/// A file server with one directory.
#[derive(Default)]
struct Directory {
    stored: Mutex<Option<String>>,
}

impl Service for Directory {
    fn package(&self) -> &'static Package {
        &rxafs::PACKAGE
    }

    fn call<'a>(&'a self, call: &'a mut IncomingCall) -> LocalBoxFuture<'a, Result<(), AbortCode>> {
        Box::pin(async move {
            let sync = Default::default();
            match call.opcode().await? {
                rxafs::FetchStatus::OPCODE => {
                    let _: rxafs::FetchStatus = call.arguments().await?;
                    let reply = rxafs::FetchStatusReply {
                        status: status(),
                        callback: Default::default(),
                        sync,
                    };
                    call.reply(&reply);
                }
                rxafs::FetchACL::OPCODE => {
                    let _: rxafs::FetchACL = call.arguments().await?;
                    let reply = rxafs::FetchACLReply {
                        access_list: rxafs::AfsOpaque::new(NUMBERS.as_bytes()).unwrap(),
                        status: status(),
                        sync,
                    };
                    call.reply(&reply);
                }
                rxafs::StoreACL::OPCODE => {
                    let arguments: rxafs::StoreACL = call.arguments().await?;
                    let text = String::from_utf8(arguments.access_list.as_bytes().to_vec());
                    *self.stored.lock() = Some(text.unwrap());
                    let reply = rxafs::StoreACLReply {
                        status: status(),
                        sync,
                    };
                    call.reply(&reply);
                }
                _ => return Err(AbortCode::RXGEN_OPCODE),
            }
            Ok(())
        })
    }
}

fn status() -> AfsFetchStatus {
    AfsFetchStatus {
        file_type: FileType::Directory,
        link_count: 2,
        length: 2048,
        data_version: 1,
        author: ViceId(0),
        owner: ViceId(0),
        caller_access: Rights::ALL,
        anonymous_access: Rights::READ,
        unix_mode: 0o755,
        parent_vnode: VnodeId(1),
        parent_uniquifier: Uniquifier(1),
        client_mod_time: AfsTime(1),
        server_mod_time: AfsTime(1),
        group: ViceId(0),
        lock_count: 0,
        error_code: AbortCode(0),
    }
}

/// The result of the cleaning, the stored list, and the ids that the protection database was asked
/// for.
async fn cleaned(mood: Mood) -> (Result<bool, String>, Option<String>, Vec<i32>) {
    let names = Arc::new(Names {
        mood,
        asked: Mutex::default(),
    });
    let database = names.clone();
    let database = only(async move |call: &mut IncomingCall, asked| {
        call.reply(&database.answer(&asked)?);
        Ok(())
    });
    let world = World::with(true, vec![database]).await;
    world.create("plan").await;
    let config = RuntimeConfig {
        shards: 1,
        ..RuntimeConfig::default()
    };
    let runtime = Runtime::start(config).unwrap();
    let directory = Arc::new(Directory::default());
    let at = SocketAddr::from((world.place(0, 0).server, world.cell.ports.fileserver));
    runtime
        .open(PortConfig::new(at).service(directory.clone()))
        .unwrap();
    let done = Files::new(&world.client).clean_access_list("plan").await;
    let done = done
        .map(|acl| acl.is_some())
        .map_err(|error| error.to_string());
    let stored = directory.stored.lock().clone();
    let asked = names.asked.lock().iter().map(|id| id.0).collect();
    runtime.shutdown();
    (done, stored, asked)
}

#[tokio::test]
async fn cleaning_drops_only_whom_the_protection_database_does_not_know() {
    let (done, stored, asked) = cleaned(Mood::Knows).await;
    assert_eq!(done, Ok(true));
    let wanted = "1\n1\nsystem:administrators\t127\nann\t2\n\0";
    assert_eq!(stored.as_deref(), Some(wanted));
    assert_eq!(asked, [-204, 7, 1234]);
}

#[tokio::test]
async fn cleaning_leaves_a_list_of_numbers_that_are_all_known() {
    let (done, stored, _) = cleaned(Mood::KnowsAll).await;
    assert_eq!((done, stored), (Ok(false), None));
}

#[tokio::test]
async fn cleaning_fails_where_no_server_says_who_is_known() {
    for mood in [Mood::Silent, Mood::TooFew] {
        let (done, stored, _) = cleaned(mood).await;
        let sentence = done.unwrap_err();
        assert!(
            sentence.contains("The access list is unchanged"),
            "{sentence}"
        );
        assert_eq!(stored, None, "{mood:?}");
    }
}
